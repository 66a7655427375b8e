"""Making a backup of a data directory, whether its standalone runs or not.

The running process is not involved. Files only grow or never change, and are removed some time
after they are unused; so

1. files that no longer change are copied, which may take long;
2. the metadata store is copied as it is at one moment;
3. what was written since then is copied, which is little;
4. each journal is cut before the first change that the copied store lacks (``journal_cut``), and
   each table's log after the last attach in the store (``table_files``);
5. if a needed file was removed meanwhile, all steps but the first are repeated;
6. the manifest is written.

The result is what a crash at the moment of step 2 would have left. Tables in ``tableRoots`` are not
part of it: these roots have copies, versions or snapshots of their own, and logs that tell what the
store lacks once it is an older one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING

from pulsark.metadata.paths import BOOKIES
from pulsark.metadata.sqlite_file import WHAT_TO_DO
from pulsark.metadata.sqlite_reading import StoreReading, read_store
from pulsark.storage.backup.copier import Copier
from pulsark.storage.backup.journal_cut import cut_at, newest_mark, segments_in
from pulsark.storage.backup.manifest import MANIFEST_NAME, METADATA_NAME, BackupError, Manifest
from pulsark.storage.backup.table_files import KnownTable, data_files, known_tables, log_files
from pulsark.storage.backup.table_files import markers as root_markers
from pulsark.storage.bookie.identity import IDENTITY_NAME, load_identity
from pulsark.storage.bookie.journal_format import segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.runtime import Clock, Disk
    from pulsark.storage.backup.data_dir import DataDir
    from pulsark.storage.bookie.fleet import BookieHome

ATTEMPTS = 5
"""Times that the metadata store is copied until nothing was removed in between."""


class Backup:
    """One backup in the making. ``make`` does all of it."""

    def __init__(
        self,
        data: DataDir,
        target: str,
        disk: Disk,
        clock: Clock,
        copied: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._data = data
        self._disk = disk
        self._clock = clock
        self._copier = Copier(disk, target, copied)
        self._places = {
            f"bookie-{number}": home
            for number, home in enumerate(data.homes, 1)
            if load_identity(disk, home.ledger_dir) is not None
        }

    def make(self) -> Manifest:
        """Copy everything; the manifest of what was copied. Raises ``BackupError``."""
        self._prepare()
        store = _sound(read_store(self._data.metadata_path))
        self._check_age(store)
        self._check_room(store)
        self._copy_what_stays(store)
        missing: list[str] = []
        for _ in range(ATTEMPTS):
            created = self._clock.now_ms()
            store = self._copy_metadata()
            self._copy_what_came(store)
            missing = [*self._cut_journals(store), *self._missing_of_tables(store)]
            if not missing:
                break
        missing += [place for place in store.below(BOOKIES) if place not in self._places]
        self._copier.note(METADATA_NAME)
        manifest = Manifest(
            store.identity,
            store.history.mark,
            created,
            tuple(self._places),
            dict(sorted(self._copier.files.items())),
            tuple(missing),
        )
        self._disk.write_atomic(self._copier.path(MANIFEST_NAME), manifest.encode())
        return manifest

    def _prepare(self) -> None:
        target = self._copier.target
        if not os.path.exists(self._data.metadata_path):
            raise BackupError(f"{self._data.path} has no {METADATA_NAME}: is it a data directory?")
        inside = os.path.realpath(target).startswith(os.path.realpath(self._data.path) + os.sep)
        if inside:
            raise BackupError(f"{target} is within the data directory: choose a place outside")
        if self._disk.list(target):
            raise BackupError(f"{target} is not empty: choose a new directory")
        self._disk.make_dirs(target)

    def _check_age(self, store: StoreReading) -> None:
        """Raise ``BackupError`` if store and bookies do not belong together."""
        known = [place for place in store.below(BOOKIES) if place not in self._places]
        if not self._places:
            raise BackupError(
                f"{self._data.path}: no bookie is where the settings say; give those of its "
                f"standalone with --conf (the metadata store knows {', '.join(known) or 'none'})"
            )
        for place, home in self._places.items():
            mark = newest_mark(self._disk, home.journal_dir)
            if not store.history.knows(mark) and not _sound(
                read_store(self._data.metadata_path)  # the mark may have come since
            ).history.knows(mark):
                raise BackupError(
                    f"the metadata store is older than {place}, or another one, so the backup "
                    "would be inconsistent. Run pulsark doctor --data-dir"
                )

    def _check_room(self, store: StoreReading) -> None:
        size = self.size(store)
        free, _ = self._disk.space(self._copier.target)
        if free < size:
            raise BackupError(
                f"{self._copier.target} has {free} bytes free, and {size} are to be copied"
            )

    def size(self, store: StoreReading) -> int:
        """The approximate number of bytes to copy."""
        paths = [self._data.metadata_path]
        for home in self._places.values():
            numbers = segments_in(self._disk, home.journal_dir)
            paths += [f"{home.journal_dir}/{segment_name(number)}" for number in numbers]
        tables = known_tables(store.nodes)
        paths += [
            f"{root}/{n}" for root, _ in self._roots() for t in tables for n in data_files(root, t)
        ]
        total = 0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                total += self._disk.size(path)
        return total

    def _copy_what_stays(self, store: StoreReading) -> None:
        """Finished segments, and files of tables."""
        for place, home in self._places.items():
            for number in segments_in(self._disk, home.journal_dir)[:-1]:
                self._copy_segment(place, home, number)
        self._copy_tables(known_tables(store.nodes))

    def _copy_metadata(self) -> StoreReading:
        """The store at one moment, all of it checked."""
        path = self._copier.path(METADATA_NAME)
        self._disk.remove(path)
        try:
            with (
                contextlib.closing(
                    sqlite3.connect(f"file:{self._data.metadata_path}?mode=ro", uri=True)
                ) as source,
                contextlib.closing(sqlite3.connect(path)) as copy,
            ):
                copy.execute("PRAGMA synchronous = FULL")
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        except sqlite3.Error as e:
            raise BackupError(f"{self._data.metadata_path} cannot be copied: {e}") from e
        return _sound(read_store(path))

    def _copy_what_came(self, store: StoreReading) -> None:
        for place, home in self._places.items():
            for number in segments_in(self._disk, home.journal_dir):
                self._copy_segment(place, home, number)
            for directory in ("journal", "ledgers"):
                source = home.journal_dir if directory == "journal" else home.ledger_dir
                name = f"{place}/{directory}/{IDENTITY_NAME}"
                self._copier.copy(source, IDENTITY_NAME, name)
        tables = known_tables(store.nodes)
        self._copy_tables(tables)
        for root, prefix in self._roots():
            for name in root_markers(root):
                self._copier.copy(root, name, f"{prefix}/{name}")
            for table in tables:
                for name in log_files(self._disk, root, table):
                    self._copier.copy(root, name, f"{prefix}/{name}")

    def _copy_segment(self, place: str, home: BookieHome, number: int) -> None:
        name = segment_name(number)
        self._copier.copy(home.journal_dir, name, f"{place}/journal/{name}")

    def _copy_tables(self, tables: list[KnownTable]) -> None:
        for root, prefix in self._roots():
            for table in tables:
                for name in data_files(root, table):
                    self._copier.copy(root, name, f"{prefix}/{name}")

    def _roots(self) -> Iterator[tuple[str, str]]:
        """Storage roots, and where they are in the backup; none if they are elsewhere."""
        if self._data.roots:
            return
        for place, home in self._places.items():
            yield os.path.join(home.ledger_dir, "table"), f"{place}/ledgers/table"

    def _cut_journals(self, store: StoreReading) -> list[str]:
        """Take off what is later than the store; what should be there and is not."""
        missing = []
        for place in self._places:
            directory = self._copier.path(f"{place}/journal")
            cut = cut_at(self._disk, directory, store.history.mark)
            if cut is None:
                missing.append(f"{place}/journal")
                continue
            for number in segments_in(self._disk, directory):
                name = f"{place}/journal/{segment_name(number)}"
                if number == cut.segment_id:
                    self._copier.cut(name, cut.size)
                elif number not in cut.older:
                    self._copier.drop(name)
            for number, least in cut.older.items():
                name = f"{place}/journal/{segment_name(number)}"
                if self._copier.files.get(name, (0, 0))[0] < least:
                    missing.append(name)
        return missing

    def _missing_of_tables(self, store: StoreReading) -> list[str]:
        """Files of tables that were not copied."""
        if self._data.roots:
            return []
        prefixes = [prefix for _, prefix in self._roots()]
        return [
            f"{table.place}/{name}"
            for table in known_tables(store.nodes)
            for name in sorted(table.files)
            if not any(f"{p}/{table.place}/{name}" in self._copier.files for p in prefixes)
        ]


def _sound(store: StoreReading) -> StoreReading:
    """The store, if all of it can be copied; else ``BackupError``."""
    wrong = [*store.trouble, *store.damaged]
    if wrong:
        raise BackupError(f"the metadata store is damaged: {', '.join(wrong[:5])}. {WHAT_TO_DO}")
    if not store.identity:
        raise BackupError(
            "the metadata store is of an earlier release: start this release on it, then back up"
        )
    return store
