"""What the metadata store knows of a table: its roots, its attaches, its sealed ledgers.

Two kinds of documents, each changed by compare-and-set of the whole: the *table record*, whose
intent is the moment of truth of an attach, and one *sealed ledger* for each ledger that has rows.
``docs/formats/table.md`` describes the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.errors import CorruptMetadataError, StorageError
from pulsark.metadata.documents import check_version
from pulsark.schemas.column_types import BINARY, ColumnType, merged
from pulsark.storage.roots.root_files import check_relative
from pulsark.storage.table.files.file_skipping import has_statistics, indexable, indexed_by

if TYPE_CHECKING:
    from pulsark.wire.topic_name import TopicName

FORMAT_VERSION = 2
"""The newest version that is read. A table has version 1 until its values have types."""
SEALED_LEDGER_VERSION = 1

PUBLISHES_DAYS = 30
"""A query that comes back within this time publishes its last batch no second time."""

Statistics = Mapping[str, Mapping[str, Any]]
"""``minValues``, ``maxValues``, ``nullCount``: by column, as Delta has them."""


def table_directory(root: str, topic: TopicName, table_id: str) -> str:
    """The table's directory on a storage root.

    The id makes it unique. Tenant and namespace are for people: an equals sign would be read as
    a partition column, and a percent sign is undone by some readers, so they become ``_``.
    """
    tenant, namespace = (re.sub(r"[^-.\w]", "_", n) for n in (topic.tenant, topic.namespace))
    return f"{root}/{tenant}/{namespace}/{table_id}"


def check_directory(path: str) -> str:
    """Return a table's directory; ``ValueError`` if it is not three names below a storage root.

    With ``..`` among them, the directory of a known root would lead outside of it.
    """
    check_relative("/".join(path.rsplit("/", 3)[1:]))
    return path


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with all rows of consecutive entries of one ledger.

    ``path`` is relative to the table's directory, the same on every root. ``crc32c`` is the
    checksum of the whole file.
    """

    path: str
    partition: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    rows: int
    size: int
    crc32c: int
    statistics: Statistics

    def __post_init__(self) -> None:
        check_relative(self.path)

    def to_json(self) -> dict[str, Any]:
        """As it stands in documents."""
        return {
            "path": self.path,
            "partition": self.partition,
            "ledgerId": self.ledger_id,
            "entries": [self.first_entry_id, self.last_entry_id],
            "rows": self.rows,
            "size": self.size,
            "crc32c": self.crc32c,
            "stats": self.statistics,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DataFile:
        """The inverse of ``to_json``; raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        first, last = document["entries"]
        return cls(
            str(document["path"]),
            int(document["partition"]),
            int(document["ledgerId"]),
            int(first),
            int(last),
            int(document["rows"]),
            int(document["size"]),
            int(document["crc32c"]),
            dict(document["stats"]),
        )

    def without_statistics(self) -> DataFile:
        """What reading needs; statistics are for the log."""
        return replace(self, statistics={})


class Published(NamedTuple):
    """The last bulk publish of an origin, which makes them one after the other."""

    ident: str
    number: int
    time_ms: int

    @classmethod
    def from_json(cls, document: Sequence[Any]) -> Published:
        """The inverse of ``list``; raises ``TypeError`` or ``ValueError``."""
        ident, number, time_ms = document
        return cls(str(ident), int(number), int(time_ms))


class RowChange(StrEnum):
    """What an attach does to the rows of a table: its commit says so to those who follow it."""

    APPEND = "append"
    """Files with new rows join the table."""
    MERGE = "merge"
    """Files take the place of others with the same rows."""
    ERASE = "erase"
    """Files take the place of others that have more rows."""
    REMOVE = "remove"
    """Files leave, and with them their rows."""
    STATE = "state"
    """No row changes: the log gets statistics of files that it has."""


@dataclass(frozen=True, slots=True)
class Intent:
    """One attach: the files that join the table and those that leave it."""

    number: int
    """1 for the first attach of a table; each has the next one."""
    time_ms: int
    """When it was decided: the commits of all roots carry this time."""
    adds: tuple[DataFile, ...] = ()
    removes: tuple[DataFile, ...] = ()
    value: ColumnType | None = None
    """The new type of the column ``value``, if the attach changes it."""
    guards: bool = False
    """Whether the commit keeps others from writing: of the first one after an older release."""
    repairs: bool = False
    """Whether it is no attach of files: each root's log is to have what the metadata store says."""
    published: Published | None = None
    """The bulk publish that it is."""
    change: RowChange | None = None
    """Without it, the commit is as releases wrote it that did not say what changes."""
    indexed: tuple[str, ...] | None = None
    """The columns that are indexed from now on, if the attach changes them."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in the table record."""
        return {
            "number": self.number,
            "timeMs": self.time_ms,
            "adds": [file.to_json() for file in self.adds],
            "removes": [file.to_json() for file in self.removes],
            **({"value": self.value} if self.value is not None else {}),
            **({"guards": True} if self.guards else {}),
            **({"repairs": True} if self.repairs else {}),
            **({"published": list(self.published)} if self.published is not None else {}),
            **({"change": self.change.value} if self.change is not None else {}),
            **({"indexed": list(self.indexed)} if self.indexed is not None else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Intent:
        """The inverse of ``to_json``."""
        published, change = document.get("published"), document.get("change")
        return cls(
            int(document["number"]),
            int(document["timeMs"]),
            tuple(DataFile.from_json(file) for file in document["adds"]),
            tuple(DataFile.from_json(file) for file in document["removes"]),
            document.get("value"),
            bool(document.get("guards", False)),
            bool(document.get("repairs", False)),
            Published.from_json(published) if published is not None else None,
            RowChange(change) if change is not None else None,
            _names(document.get("indexed")),
        )


class OthersCommit(NamedTuple):
    """The newest commit of another engine that was found in the log on one root."""

    directory: str
    version: int
    time_ms: int
    what: str
    """What it says of itself: the operation, and whose it was."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The durable state of a table."""

    table_id: str
    """The id of its topic: 32 hexadecimal digits."""
    created_ms: int
    roots: tuple[str, ...]
    """Directories of the table on its storage roots; the first is the primary."""
    intent: Intent | None = None
    """The last attach. It stays here when it is done, to make its commits again if need be."""
    pending: bool = False
    """Whether the intent is still to be rolled forward."""
    value: ColumnType = BINARY
    """The type of the column ``value``. Only the first attach may change it from binary."""
    guarded: bool = True
    """Whether its log forbids other engines to write; false of tables of older releases."""
    first_version: int = 0
    """Commits of versions before it may be gone; a checkpoint has what they said."""
    published: tuple[Published, ...] = ()
    """Bulk publishes that were decided, the latest last; older ones are in ``publishes``."""
    others: tuple[OthersCommit, ...] = ()
    """What other engines have written to its logs without a repair since; one a root."""
    indexed: tuple[str, ...] | None = None
    """The columns of which all files have statistics in the log, as its configuration says;
    ``None`` if it says nothing of it yet."""
    stated: bool = False
    """Whether the log has all statistics that can be had of its files."""

    @property
    def version(self) -> int:
        """The version of the table's format: the oldest that can say all of it."""
        return 1 if self.value == BINARY else 2

    def relocated(self, where: Callable[[str], str]) -> TableRecord:
        """With the directories as they are called now."""
        others = tuple(o._replace(directory=where(o.directory)) for o in self.others)
        return replace(self, roots=tuple(map(where, self.roots)), others=others)

    def known_of_others(self, directory: str) -> int:
        """The newest version on a root that is known to be another engine's; -1 without one."""
        return max((o.version for o in self.others if o.directory == directory), default=-1)

    def with_others(self, found: OthersCommit) -> TableRecord:
        """With a commit of another engine noted."""
        rest = [other for other in self.others if other.directory != found.directory]
        return replace(self, others=(*rest, found))

    def has_published(self, ident: str, number: int) -> bool:
        """Whether it lists a bulk publish, or a later one of the same origin."""
        return any(done.ident == ident and done.number >= number for done in self.published)

    def publishing(
        self,
        done: Published,
        adds: Iterable[DataFile],
        value: ColumnType,
        change: RowChange | None = None,
    ) -> TableRecord:
        """With a bulk publish decided, which is noted in place of an earlier one of its origin."""
        record = self.intending(done.time_ms, adds, (), value, change)
        assert record.intent is not None
        others = tuple(other for other in self.published if other.ident != done.ident)
        intent = replace(record.intent, published=done)
        return replace(record, intent=intent, published=(*others, done))

    def decided(self, ledger_id: int) -> SealedLedger | None:
        """A ledger that the intent brings whole, as long as that is to be rolled forward."""
        if self.intent is None or not self.pending:
            return None
        partition = ledgers_of(self.intent).get(ledger_id, -1)
        found = SealedLedger(ledger_id, partition).with_intent(self.intent)
        return found if found.files and found.is_whole() else None

    @property
    def attached(self) -> int:
        """The number of the last attach that was decided, 0 before the first."""
        return self.intent.number if self.intent is not None else 0

    def intending(
        self,
        time_ms: int,
        adds: Iterable[DataFile],
        removes: Iterable[DataFile],
        value: ColumnType | None = None,
        change: RowChange | None = None,
        indexed: Sequence[str] | None = None,
    ) -> TableRecord:
        """With the next attach decided; ``value`` is the type that its files have in ``value``.

        Without ``change`` it is as an older release decides it. With ``indexed`` the log then has
        all statistics that can be had, and these are the columns that all files have them of.
        Raises ``StorageError`` if the table does not take that type.
        """
        if value is None or value == self.value:
            value = None
        elif self.attached and merged(self.value, value) != value:
            raise StorageError("the table has other columns than the files of an attach")
        intent = Intent(
            self.attached + 1,
            time_ms,
            tuple(adds),
            tuple(removes),
            value,
            not self.guarded,
            change=change,
        )
        after = replace(
            self,
            intent=intent,
            pending=True,
            value=self.value if value is None else value,
            guarded=True,
        )
        return after if change is None else self._indexing(after, intent, indexed)

    def _indexing(
        self, after: TableRecord, intent: Intent, indexed: Sequence[str] | None
    ) -> TableRecord:
        """Return what follows after an attach, with the columns that are indexed then."""
        possible = indexable(after.value)
        if indexed is None:
            known = (self.indexed or ()) if self.attached else possible
            columns = [column for column in known if column in possible]
            now = indexed_by(intent.adds, columns)
            stated = self.stated or not self.attached
            stated = stated and all(has_statistics(file, possible) for file in intent.adds)
        else:
            now, stated = tuple(indexed), True
        if now != self.indexed:
            intent = replace(intent, indexed=now)
        return replace(after, intent=intent, indexed=now, stated=stated)

    def repairing(self, time_ms: int, behind: int = 0, *, states: bool = True) -> TableRecord:
        """With a repair of the logs decided, which has the number of the next attach.

        Some log has one with the number ``behind``, of which the table knows nothing. No column is
        indexed after it, because the metadata store knows no statistics of the files that a log
        may lack; without ``states``, its configuration says nothing of that.
        """
        number = max(self.attached, behind) + 1
        intent = Intent(number, time_ms, guards=True, repairs=True)
        indexed = () if states else None
        return replace(
            self, intent=intent, pending=True, guarded=True, indexed=indexed, stated=False
        )

    def taking_up(self, attached: int, time_ms: int, value: ColumnType) -> TableRecord:
        """With everything known up to an attach that some log has, and this record has not.

        As if that had been a repair: a root that has it not yet gets what its table has by then.
        """
        intent = Intent(attached, time_ms, guards=True, repairs=True)
        return replace(self, intent=intent, pending=True, value=value, guarded=True, stated=False)

    def done(self) -> TableRecord:
        """With the intent rolled forward."""
        repaired = self.intent is not None and self.intent.repairs and self.pending
        return replace(self, pending=False, others=() if repaired else self.others)

    def encode(self) -> bytes:
        """The stored JSON."""
        return _encode(
            {
                "version": self.version,
                "tableId": self.table_id,
                "createdMs": self.created_ms,
                "roots": list(self.roots),
                "intent": self.intent.to_json() if self.intent is not None else None,
                "pending": self.pending,
                **({"value": self.value} if self.version > 1 else {}),
                **({"guarded": True} if self.guarded else {}),
                **({"firstVersion": self.first_version} if self.first_version else {}),
                **({"published": [list(p) for p in self.published]} if self.published else {}),
                **({"others": [list(o) for o in self.others]} if self.others else {}),
                **({"indexed": list(self.indexed)} if self.indexed is not None else {}),
                **({"stated": True} if self.stated else {}),
            }
        )

    @classmethod
    def decode(cls, path: str, value: bytes) -> TableRecord:
        """The inverse of ``encode``; raises ``MetadataError``."""
        try:
            document = json.loads(value)
            check_version(document, FORMAT_VERSION)
            intent = document["intent"]
            table_id = str(document["tableId"])
            check_directory(f"/{table_id}")
            return cls(
                table_id,
                int(document["createdMs"]),
                tuple(check_directory(str(path)) for path in document["roots"]),
                Intent.from_json(intent) if intent is not None else None,
                bool(document["pending"]),
                document.get("value", BINARY),
                bool(document.get("guarded", False)),
                int(document.get("firstVersion", 0)),
                tuple(map(Published.from_json, document.get("published", ()))),
                tuple(
                    OthersCommit(str(directory), int(version), int(time_ms), str(what))
                    for directory, version, time_ms, what in document.get("others", ())
                ),
                _names(document.get("indexed")),
                bool(document.get("stated", False)),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptMetadataError(f"the record {path} cannot be read: {e!r}") from e


class LeftFile(NamedTuple):
    """A file that an attach took out of the table. Readers of older versions may need it."""

    path: str
    time_ms: int
    """When it left."""


@dataclass(frozen=True, slots=True)
class SealedLedger:
    """Which files hold a ledger's entries: from the first one on, without gaps."""

    ledger_id: int
    partition: int
    files: tuple[DataFile, ...] = ()
    left: tuple[LeftFile, ...] = ()
    """Files that are no longer part of it, and are still on the roots."""

    @property
    def through(self) -> int:
        """The last entry that is sealed, -1 without one."""
        return self.files[-1].last_entry_id if self.files else -1

    def file_of(self, entry_id: int) -> DataFile | None:
        """The file that holds an entry."""
        for file in self.files:
            if file.first_entry_id <= entry_id <= file.last_entry_id:
                return file
        return None

    def with_intent(self, intent: Intent) -> SealedLedger:
        """After an attach; the same again if it was already applied."""
        gone = {file.path for file in intent.removes}
        new = [file.without_statistics() for file in _of(self.ledger_id, intent.adds)]
        known = {file.path for file in new} | gone
        files = [file for file in self.files if file.path not in known] + new
        files.sort(key=lambda file: file.first_entry_id)
        left = {file.path: file for file in self.left}
        for path in gone & {file.path for file in _of(self.ledger_id, intent.removes)}:
            left.setdefault(path, LeftFile(path, intent.time_ms))
        return replace(self, files=tuple(files), left=tuple(sorted(left.values())))

    def taking_up(
        self, files: Iterable[DataFile], left: Iterable[str], time_ms: int
    ) -> SealedLedger:
        """With these files, as its table's log has them; what it had besides has left."""
        now = tuple(sorted(files, key=lambda file: file.first_entry_id))
        paths = {file.path for file in now}
        gone = {file.path: file for file in self.left if file.path not in paths}
        for path in sorted({*left, *(file.path for file in self.files)} - paths):
            gone.setdefault(path, LeftFile(path, time_ms))
        return replace(self, files=now, left=tuple(sorted(gone.values())))

    def whole(self) -> SealedLedger:
        """As far as the files follow each other from the first entry on."""
        files: list[DataFile] = []
        for file in self.files:
            if file.first_entry_id != (files[-1].last_entry_id + 1 if files else 0):
                break
            files.append(file)
        return replace(self, files=tuple(files))

    def without_left(self, paths: Iterable[str]) -> SealedLedger:
        """After files that had left were deleted."""
        gone = set(paths)
        return replace(self, left=tuple(file for file in self.left if file.path not in gone))

    def is_whole(self) -> bool:
        """Whether the files follow each other from the first entry on."""
        ends = [-1, *(file.last_entry_id for file in self.files)]
        return all(
            file.first_entry_id == end + 1 for file, end in zip(self.files, ends, strict=False)
        )

    def encode(self) -> bytes:
        """The stored JSON."""
        return _encode(
            {
                "version": SEALED_LEDGER_VERSION,
                "ledgerId": self.ledger_id,
                "partition": self.partition,
                "files": [file.to_json() for file in self.files],
                "left": [list(file) for file in self.left],
            }
        )

    @classmethod
    def decode(cls, path: str, value: bytes) -> SealedLedger:
        """The inverse of ``encode``; raises ``MetadataError``."""
        try:
            document = json.loads(value)
            check_version(document, SEALED_LEDGER_VERSION)
            return cls(
                int(document["ledgerId"]),
                int(document["partition"]),
                tuple(DataFile.from_json(file) for file in document["files"]),
                tuple(
                    LeftFile(check_relative(str(path)), int(time))
                    for path, time in document["left"]
                ),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptMetadataError(f"the record {path} cannot be read: {e!r}") from e


def ledgers_of(intent: Intent) -> dict[int, int]:
    """The ledgers that an attach changes, and their partitions."""
    return {file.ledger_id: file.partition for file in (*intent.removes, *intent.adds)}


def _names(names: Sequence[Any] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(map(str, names))


def _of(ledger_id: int, files: Sequence[DataFile]) -> list[DataFile]:
    return [file for file in files if file.ledger_id == ledger_id]


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
