"""``pulsark backup`` and ``pulsark restore``: copy a data directory, and restore it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import human_size, print_json
from pulsark.config.sources import load_settings
from pulsark.config.store_urls import check_own_file
from pulsark.metadata.paths import BOOKIES
from pulsark.metadata.sqlite_reading import read_store
from pulsark.runtime import OsDisk, SystemClock
from pulsark.storage.backup.data_dir import DataDir, locked
from pulsark.storage.backup.make import Backup
from pulsark.storage.backup.manifest import Manifest, read_manifest
from pulsark.storage.backup.restore import check_directories, check_empty, restore

SAID_EVERY_SECONDS = 2.0


class BackupProgress:
    """Says now and then how much has been copied."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._start = self._said = self._clock.monotonic()
        self._bytes = 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock.monotonic() - self._start

    def copied(self, size: int) -> None:
        """Count copied bytes."""
        self._bytes += size
        now = self._clock.monotonic()
        if now - self._said >= SAID_EVERY_SECONDS:
            self._said = now
            print(f"copied {human_size(self._bytes)} in {self.seconds:.0f} s", file=sys.stderr)


def make_backup(target: str, data_dir: str | None, conf: str | None, *, as_json: bool) -> bool:
    """Copy a data directory; whether nothing was missing in it."""
    disk, progress = OsDisk(), BackupProgress()
    data = _data_dir(data_dir, conf, disk)
    target = os.path.abspath(target)
    with _disk_errors():
        manifest = Backup(data, target, disk, SystemClock(), progress.copied).make()
    if as_json:
        print_json({"target": target, "tableRoots": list(data.roots), **_told(manifest, progress)})
    else:
        print(f"backup of {data.path} as of {_time(manifest)}: {_size(manifest, progress)}")
        print(f"it is in {target}")
        if data.roots:
            print(
                f"pulsark: note: tables in {', '.join(data.roots)} (tableRoots) are not in it; "
                "what these have and it lacks is taken up by: pulsark tables repair TOPIC",
                file=sys.stderr,
            )
        for name in manifest.missing:
            print(f"pulsark: warning: {name} was not there and is not in it", file=sys.stderr)
    return not manifest.missing


def run_restore(backup: str, data_dir: str, conf: str | None, *, as_json: bool) -> None:
    """Make a data directory of a backup."""
    disk, progress = OsDisk(), BackupProgress()
    backup = os.path.abspath(backup)
    manifest = read_manifest(disk, backup)
    data = _data_dir(data_dir, conf, disk, manifest.highest_place)
    with _disk_errors():
        check_directories(data)
        check_empty(data, disk)
        disk.make_dirs(data.path)
        for home in data.homes[: manifest.highest_place]:
            disk.make_dirs(home.journal_dir)
            disk.make_dirs(home.ledger_dir)
        with locked(data):
            restore(manifest, backup, data, disk, progress.copied)
    if as_json:
        print_json({"dataDir": data.path, **_told(manifest, progress)})
        return
    print(f"restored the state of {_time(manifest)}: {_size(manifest, progress)}")
    fleet = "" if manifest.fleet_size == 1 else f" --bookies {manifest.fleet_size}"
    told = fleet if conf is None else f" --conf {conf}"
    print(f"start it with: pulsark standalone --data-dir {data.path}{told}")


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise CommandError(f"{e.filename or 'the disk'}: {e.strerror or e}") from e


def _data_dir(path: str | None, conf: str | None, disk: OsDisk, known: int = 0) -> DataDir:
    flags: dict[str, str | int | bool] = {} if path is None else {"dataDir": path}
    settings = load_settings(file=conf, environment=os.environ, flags=flags).settings
    check_own_file(settings, "restore" if known else "backup")
    if not known:
        known = len(read_store(DataDir.of(settings).metadata_path).below(BOOKIES))
    return DataDir.found(settings, disk, known)


def _told(manifest: Manifest, progress: BackupProgress) -> dict[str, object]:
    fields = asdict(manifest)
    del fields["files"]
    return {
        **fields,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "seconds": round(progress.seconds, 3),
    }


def _size(manifest: Manifest, progress: BackupProgress) -> str:
    files = len(manifest.files)
    return f"{files} files, {human_size(manifest.size)}, in {progress.seconds:.1f} s"


def _time(manifest: Manifest) -> str:
    time = datetime.fromtimestamp(manifest.created_ms / 1000, UTC)
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
