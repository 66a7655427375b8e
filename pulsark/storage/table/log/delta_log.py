"""The Delta log of a table on one storage root: JSON files, one a commit.

The log is written here and not by a library, for two reasons. Libraries sync nothing, so that a
power failure can leave an empty commit, which readers take for one without rows. And every step
of an attach must run on the simulated disk, where it is crashed.

A commit is written to a temporary file, synced, and linked to its name, which must not exist:
of two writers of one version one wins, and a commit is there as a whole or not at all.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.schemas.column_types import BINARY, struct
from pulsark.storage.table.files.file_skipping import configuration
from pulsark.storage.table.files.record import (
    PUBLISHES_DAYS,
    DataFile,
    Intent,
    Published,
    RowChange,
    TableRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pulsark.storage.roots.root_files import RootFiles

APP_ID = "pulsark"
"""Under this name commits carry the number of their attach."""

PUBLISH_APP_ID = "pulsark/publish/"
"""What the id of a bulk publish stands behind: under it, a commit carries the publish's number."""

FORMAT_PROPERTY = "pulsark.formatVersion"

WRITER_FEATURE = "pulsark"
"""An engine that does not know a feature of a table's writers may read the table, and must not
write to it, optimise it or delete from it. No other engine knows this one."""

WHAT_CHARS_MAX = 200
"""Characters that are kept of what a commit of another engine says of itself."""

Action: TypeAlias = dict[str, Any]

_MESSAGE_TIME = "timestamp"
COLUMN_TYPES: Mapping[str, Any] = {
    "partition": "integer",
    "ledger_id": "long",
    "entry_id": "long",
    "batch_index": "integer",
    "batch_size": "integer",
    "key": "string",
    "key_base64": "boolean",
    "ordering_key": "binary",
    "value": "binary",
    "value_raw": "binary",
    "properties": {
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    },
    "producer_name": "string",
    "sequence_id": "long",
    "publish_time": _MESSAGE_TIME,
    "event_time": _MESSAGE_TIME,
    "schema_version": "binary",
    "replicated_from": "string",
    "deliver_at_time": _MESSAGE_TIME,
    "entry_meta": "binary",
    "message_meta": "binary",
}
"""The columns of ``rows.TABLE_SCHEMA`` in Delta's words; a test compares them."""

LAST_CHECKPOINT: Final = "_last_checkpoint"

_commit_name = re.compile(r"(\d{20})\.json")
_checkpoint_name = re.compile(r"(\d{20})\.checkpoint\.parquet")


class CorruptCommitError(CorruptEntryError):
    """A commit is empty, torn or no commit at all."""


class Listed(NamedTuple):
    """The versions that a log has, ascending, as one list of its directory shows them."""

    versions: list[int]
    """Of commits; old ones may be gone."""
    checkpoints: list[int]

    @property
    def first(self) -> int:
        """The first version that can be told: from its checkpoint, if the log was folded."""
        if not self.versions:
            return 0
        first = self.versions[0]
        known = [version for version in self.checkpoints if version >= first]
        return known[0] if first and known else first


class DeltaLog:
    """The log of the table in a directory. All calls block, and raise ``OSError``."""

    def __init__(self, disk: RootFiles, directory: str) -> None:
        self.disk = self._disk = disk
        self.directory = directory
        self.path = self._log = f"{directory}/_delta_log"

    def versions(self) -> list[int]:
        """The commits that are there, ascending; old ones may be gone."""
        return self.listed().versions

    def listed(self) -> Listed:
        """List the directory once, for commits and checkpoints."""
        names = self._disk.list(self._log)
        return Listed(_versions(_commit_name, names), _versions(_checkpoint_name, names))

    def has(self, version: int) -> bool:
        """Whether there is a commit, or at least a file with its name."""
        try:
            self._disk.size(self._path(version))
        except FileNotFoundError:
            return False
        return True

    def checkpoints(self) -> list[int]:
        """The versions of which there are checkpoints, ascending."""
        return self.listed().checkpoints

    def first(self) -> int:
        """The first version that can be told: from its checkpoint, if the log was folded."""
        return self.listed().first

    def read(self, version: int) -> list[Action]:
        """The actions of a commit; ``CorruptCommitError``."""
        return parse_commit(self.read_bytes(version), self._path(version))

    def read_bytes(self, version: int) -> bytes:
        """A commit as it is stored."""
        path = self._path(version)
        file = self._disk.open(path)
        try:
            return file.read(0, self._disk.size(path))
        finally:
            file.close()

    def create(self, record: TableRecord) -> None:
        """Make the table's directory and its first commit, unless they are there.

        ``StorageError`` if the log does not begin with that commit any more; a repair begins it
        anew.
        """
        self._disk.make_dirs(self._log)
        if not self.versions():
            begins = record.intent is not None and record.intent.repairs and record.pending
            if record.first_version and not begins:
                raise StorageError(
                    f"{self.directory} has no log; the job replicate_ledgers fills the root"
                )
            self._write(0, first_commit(record))

    def write(self, version: int, commit: bytes) -> None:
        """Add a commit, durably; ``FileExistsError`` if there is one with its number."""
        self._write(version, commit)

    def replace(self, version: int, commit: bytes) -> None:
        """Write a damaged commit again, durably."""
        self._disk.write_atomic(self._path(version), commit)

    def clean(self) -> None:
        """Remove what interrupted writers left behind."""
        for name in self._disk.list(self._log):
            if name.endswith(".tmp"):
                self._disk.remove(f"{self._log}/{name}")

    def attached(self, versions: Sequence[int]) -> int:
        """The number of the last attach among these commits; 0 without one."""
        for version in reversed(versions):
            number = attach_number(self.read(version))
            if number is not None:
                return number
        return 0

    def _write(self, version: int, commit: bytes) -> None:
        self._disk.write_new(self._path(version), commit)

    def _path(self, version: int) -> str:
        return f"{self._log}/{commit_name(version)}"


def commit_name(version: int) -> str:
    """The name of a commit's file."""
    return f"{version:020d}.json"


def _versions(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)


def checkpoint_name(version: int) -> str:
    """The name of a checkpoint's file."""
    return f"{version:020d}.checkpoint.parquet"


def parse_commit(commit: bytes, path: str) -> list[Action]:
    """The actions of a commit; ``CorruptCommitError`` unless it is whole."""
    try:
        actions = [json.loads(line) for line in commit.splitlines()]
    except (ValueError, RecursionError) as e:
        raise CorruptCommitError(f"{path} is damaged: {e}") from None
    if not actions or not commit.endswith((b"}", b"\n")):
        raise CorruptCommitError(f"{path} is damaged: {len(commit)} bytes")
    if not all(isinstance(action, dict) for action in actions):
        raise CorruptCommitError(f"{path} is damaged: an action is no object")
    return actions


def attach_number(actions: Iterable[Action]) -> int | None:
    """The attach that a commit belongs to, if it is one of ours."""
    for action in actions:
        transaction = action.get("txn")
        if transaction is not None and transaction.get("appId") == APP_ID:
            return int(transaction["version"])
    return None


def publishes_of(actions: Iterable[Action]) -> list[Published]:
    """The bulk publishes that a commit or a checkpoint tells of."""
    transactions = [action["txn"] for action in actions if "txn" in action]
    return [
        Published(
            found["appId"][len(PUBLISH_APP_ID) :], found["version"], found["lastUpdated"] or 0
        )
        for found in transactions
        if found["appId"].startswith(PUBLISH_APP_ID)
    ]


def attached_ms(actions: Iterable[Action]) -> int | None:
    """When an attach was decided (epoch), if this is one and says it."""
    actions = list(actions)
    return None if attach_number(actions) is None else _time_of(actions)


def files_of(actions: Iterable[Action]) -> list[DataFile]:
    """The files that a commit of ours adds."""
    return [_file(action["add"]) for action in actions if "add" in action]


def first_commit(record: TableRecord) -> bytes:
    """The commit that makes a table; equal on all roots."""
    return _lines(
        [
            _info(record.created_ms, "CREATE TABLE"),
            _protocol(),
            _metadata(replace(record, value=BINARY, indexed=None)),
        ]
    )


def _protocol() -> Action:
    return {
        "protocol": {
            "minReaderVersion": 1,
            "minWriterVersion": 7,
            "writerFeatures": [WRITER_FEATURE],
        }
    }


def _metadata(record: TableRecord) -> Action:
    columns = struct({**COLUMN_TYPES, "value": record.value}.items())
    return {
        "metaData": {
            "id": _id_of(record.table_id),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(columns, separators=(",", ":")),
            "partitionColumns": ["partition", "ledger_id"],
            "configuration": {
                FORMAT_PROPERTY: str(record.version),
                # Writers of checkpoints drop older ones: one for each write would be many.
                "delta.setTransactionRetentionDuration": f"interval {PUBLISHES_DAYS} days",
                **(configuration(record.indexed) if record.indexed is not None else {}),
            },
            "createdTime": record.created_ms,
        }
    }


def _id_of(ident: str) -> str:
    return "-".join((ident[:8], ident[8:12], ident[12:16], ident[16:20], ident[20:]))


def commit_of(record: TableRecord) -> bytes:
    """The commit of the last attach; equal on all roots, so that it can be made again."""
    intent = record.intent
    assert intent is not None
    said, escaped = _WORDS[intent.change], intent.change is None
    changes = intent.value is not None or intent.indexed is not None
    return _lines(
        [
            _attach_info(intent),
            _transaction(intent),
            *([_publish(intent.published)] if intent.published is not None else []),
            *([_protocol()] if intent.guards else []),
            *([_metadata(record)] if changes else []),
            *(
                {"add": {**_add(file, intent.time_ms, escaped), "dataChange": said.adds_rows}}
                for file in intent.adds
            ),
            *(
                {"remove": {**_remove(file, intent.time_ms), "dataChange": said.removes_rows}}
                for file in intent.removes
            ),
        ],
        escaped,
    )


class _Words(NamedTuple):
    """How a commit tells other engines of a change."""

    operation: str
    adds_rows: bool
    """Whether rows of added files were not in the table before."""
    removes_rows: bool
    """Whether rows of removed files are not in the table afterwards."""


_WORDS: Final = {
    None: _Words("", True, True),
    RowChange.APPEND: _Words("WRITE", True, True),
    RowChange.MERGE: _Words("OPTIMIZE", False, False),
    RowChange.ERASE: _Words("DELETE", False, True),
    RowChange.REMOVE: _Words("DELETE", False, True),
    RowChange.STATE: _Words("COMPUTE STATS", False, False),
}


def _attach_info(intent: Intent) -> Action:
    if intent.change is None:
        return _info(intent.time_ms, "WRITE" if intent.adds else "DELETE")
    info = _info(intent.time_ms, _WORDS[intent.change].operation)
    metrics = {
        "numAddedFiles": len(intent.adds),
        "numRemovedFiles": len(intent.removes),
        "numAddedBytes": sum(file.size for file in intent.adds),
        "numRemovedBytes": sum(file.size for file in intent.removes),
    }
    parameters: dict[str, str] = {}
    match intent.change:
        case RowChange.APPEND:
            parameters = {"mode": "Append", "partitionBy": '["partition","ledger_id"]'}
            metrics = {
                "numFiles": len(intent.adds),
                "numOutputRows": sum(file.rows for file in intent.adds),
                "numOutputBytes": metrics["numAddedBytes"],
            }
            info["commitInfo"]["isBlindAppend"] = True
        case RowChange.MERGE:
            parameters = {"predicate": "[]", "zOrderBy": "[]", "auto": "true"}
        case RowChange.ERASE | RowChange.REMOVE:
            ledgers = ", ".join(map(str, sorted({file.ledger_id for file in intent.removes})))
            parameters = {"predicate": json.dumps([f"(ledger_id IN ({ledgers}))"])}
            rows = sum(file.rows for file in intent.removes)
            metrics["numDeletedRows"] = rows - sum(file.rows for file in intent.adds)
    # Spark reads both as maps from strings to strings.
    info["commitInfo"]["operationParameters"] = parameters
    info["commitInfo"]["operationMetrics"] = {name: str(n) for name, n in metrics.items()}
    return info


def is_commit_of(actions: Iterable[Action], intent: Intent) -> bool:
    """Whether these are the actions of an attach, whichever release wrote them."""
    actions = list(actions)
    return (
        attach_number(actions) == intent.number
        and _time_of(actions) in (None, intent.time_ms)
        and (intent.repairs or _has_files_of(actions, intent))
    )


def is_of_table(metadata: Mapping[str, Any], table_id: str) -> bool:
    """Whether a log with this ``metaData`` is that of a table."""
    return metadata.get("id") == _id_of(table_id)


def attach_time(actions: Iterable[Action]) -> int:
    """When an attach was decided; 0 if its commit does not say."""
    return _time_of(actions) or 0


def _has_files_of(actions: list[Action], intent: Intent) -> bool:
    return {a["add"]["path"] for a in actions if "add" in a} == {f.path for f in intent.adds} and {
        a["remove"]["path"] for a in actions if "remove" in a
    } == {f.path for f in intent.removes}


def said_by_others(actions: Iterable[Action]) -> tuple[int, str]:
    """Time (0: it does not say) and operation of a commit that is none of ours."""
    infos = [found for a in actions if isinstance(found := a.get("commitInfo"), dict)]
    info = infos[0] if infos else {}
    time_ms = info.get("timestamp")
    whose = info.get("engineInfo") or info.get("clientVersion") or "an unknown engine"
    what = f"{info.get('operation') or 'a commit'} by {whose}"
    return time_ms if isinstance(time_ms, int) else 0, what[:WHAT_CHARS_MAX]


def _time_of(actions: Iterable[Action]) -> int | None:
    times = [action["commitInfo"].get("timestamp") for action in actions if "commitInfo" in action]
    return int(times[0]) if times and times[0] is not None else None


def repair_of(record: TableRecord, adds: Iterable[Action], removes: Iterable[Action]) -> bytes:
    """The commit of a repair on one root, whose log lacks ``adds`` and has ``removes`` too many.

    In both, ``dataChange`` says whether rows join or leave the table with the file.
    """
    intent = record.intent
    assert intent is not None
    return _lines(
        [
            _info(intent.time_ms, "RESTORE"),
            _transaction(intent),
            _protocol(),
            _metadata(record),
            *({"remove": _taken_out(action, intent.time_ms)} for action in removes),
            *({"add": action} for action in adds),
        ],
        escaped=False,
    )


def placeholder(time_ms: int, number: int | None) -> bytes:
    """Return a commit without files, in the place of a lost one, which was this attach."""
    lost = [] if number is None else [number]
    txns = [{"txn": {"appId": APP_ID, "version": n, "lastUpdated": time_ms}} for n in lost]
    return _lines([_info(time_ms, "REPAIR"), *txns], escaped=False)


def added(file: DataFile, time_ms: int) -> Action:
    """The ``add`` of a file."""
    return _add(file, time_ms, escaped=False)


def _taken_out(add: Mapping[str, Any], time_ms: int) -> Action:
    """The ``remove`` of a file, which another engine may have added."""
    return {
        "path": add["path"],
        "deletionTimestamp": time_ms,
        "dataChange": add["dataChange"],
        "extendedFileMetadata": True,
        "partitionValues": add.get("partitionValues") or {},
        "size": add.get("size") or 0,
        **({"deletionVector": add["deletionVector"]} if add.get("deletionVector") else {}),
    }


def _transaction(intent: Intent) -> Action:
    return {"txn": {"appId": APP_ID, "version": intent.number, "lastUpdated": intent.time_ms}}


def _publish(done: Published) -> Action:
    app_id = PUBLISH_APP_ID + done.ident
    return {"txn": {"appId": app_id, "version": done.number, "lastUpdated": done.time_ms}}


def _add(file: DataFile, time_ms: int, escaped: bool) -> Action:
    statistics = {"numRecords": file.rows, **file.statistics}
    return {
        "path": file.path,
        "partitionValues": _partition_values(file),
        "size": file.size,
        "modificationTime": time_ms,
        "dataChange": True,
        "stats": json.dumps(statistics, separators=(",", ":"), ensure_ascii=escaped),
        "tags": {
            "pulsark.entries": f"{file.first_entry_id}-{file.last_entry_id}",
            "pulsark.crc32c": str(file.crc32c),
        },
    }


def _file(add: Mapping[str, Any]) -> DataFile:
    try:
        statistics = json.loads(add["stats"])
        first, last = add["tags"]["pulsark.entries"].split("-")
        return DataFile(
            add["path"],
            int(add["partitionValues"]["partition"]),
            int(add["partitionValues"]["ledger_id"]),
            int(first),
            int(last),
            statistics.pop("numRecords"),
            add["size"],
            int(add["tags"]["pulsark.crc32c"]),
            statistics,
        )
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptCommitError(f"not an add action of ours: {e!r}") from None


def _remove(file: DataFile, time_ms: int) -> Action:
    return {
        "path": file.path,
        "deletionTimestamp": time_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": _partition_values(file),
        "size": file.size,
    }


def _partition_values(file: DataFile) -> dict[str, str]:
    return {"partition": str(file.partition), "ledger_id": str(file.ledger_id)}


def _info(time_ms: int, operation: str) -> Action:
    return {
        "commitInfo": {
            "timestamp": time_ms,
            "operation": operation,
            "operationParameters": {},
            "engineInfo": "pulsark",
        }
    }


def _lines(actions: Iterable[Action], escaped: bool = True) -> bytes:
    """Return a commit. Without ``escaped`` all characters stand for themselves.

    delta-rs reads an escaped character beyond U+FFFF as another one, and would skip files by it.
    Older releases escaped them, and a commit that is made again must have the same bytes.
    """
    encode: Callable[[Action], str] = json.JSONEncoder(
        separators=(",", ":"), ensure_ascii=escaped
    ).encode
    return b"".join(encode(action).encode() + b"\n" for action in actions)
