"""Finds damage in the log of a table on one storage root. Everything blocks.

``CommitChecks`` is for a broker, before it writes behind the commits that are there. ``log_faults``
is for the doctor: it reads the whole log, its checkpoints and the footers of the files.

What another engine wrote is not damage: ``root_log`` notes it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c

from pulsark.errors import DamagedLogError, PulsarkError
from pulsark.storage.roots.root_files import check_relative, in_object_store
from pulsark.storage.table.log.delta_log import (
    LAST_CHECKPOINT,
    Action,
    CorruptCommitError,
    DeltaLog,
    Listed,
    attach_number,
    checkpoint_name,
    parse_commit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pulsark.storage.roots.root_files import RootFiles

_PARQUET_MAGIC = b"PAR1"
_TYPE = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp(_ntz)?|"
    r"variant|void|decimal\(\d+, ?-?\d+\)|(char|varchar)\(\d+\)|interval .*|geo(metry|graphy).*"
)
_STATISTICS = ("minValues", "maxValues", "nullCount")


class Fault(NamedTuple):
    """Damage in a log. ``version`` is the commit's or checkpoint's, -1 of the log as a whole."""

    version: int
    what: str

    def __str__(self) -> str:
        return self.what if self.version < 0 else f"commit {self.version} {self.what}"


class NamedFile(NamedTuple):
    """What a log says of a file that is in the table."""

    path: str
    ledger_id: int
    size: int
    rows: int
    crc32c: int
    version: int
    """Of the commit that says so."""


def commit_faults(actions: Iterable[Action]) -> Iterator[str]:
    """Yield what is wrong with the actions of one commit, taken by itself."""
    seen: set[str] = set()
    for action in actions:
        for kind in ("add", "remove", "txn", "metaData", "protocol", "commitInfo"):
            if kind in action and not isinstance(action[kind], dict):
                yield f"has a damaged {kind}"
                return
        if (wrong := _shape_fault(action)) is not None:
            yield wrong
            return
        try:
            attach_number([action])
        except (KeyError, TypeError, ValueError) as e:
            yield f"has a damaged txn: {e!r}"
        add = action.get("add")
        if add is None or "pulsark.entries" not in _mapping(add.get("tags")):
            continue
        try:
            path = _named(add, 0).path
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            yield f"has a damaged add of {str(add.get('path'))[:200]!r}: {e}"
            continue
        if path in seen:
            yield f"adds {path} twice"
        seen.add(path)


def _shape_fault(action: Action) -> str | None:
    """Return why no engine could open the table after a ``protocol`` or a ``metaData``."""
    protocol, metadata = action.get("protocol"), action.get("metaData")
    if protocol is not None:
        versions = (protocol.get("minReaderVersion"), protocol.get("minWriterVersion"))
        if not all(isinstance(version, int) for version in versions):
            return "has a damaged protocol"
    if metadata is not None:
        try:
            schema = json.loads(metadata["schemaString"])
            sound = isinstance(metadata["id"], str) and schema["type"] == "struct"
            sound = sound and isinstance(metadata["partitionColumns"], list) and _is_type(schema)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            sound = False
        if not sound:
            return "has a damaged metaData"
    return None


def _is_type(kind: Any) -> bool:
    """Return whether a schema is one of Delta's; a field without a type raises ``KeyError``."""
    if isinstance(kind, str):
        return _TYPE.fullmatch(kind) is not None
    match kind["type"]:
        case "struct":
            named = all(isinstance(field["name"], str) for field in kind["fields"])
            return named and all(_is_type(field["type"]) for field in kind["fields"])
        case "array":
            return _is_type(kind["elementType"])
        case "map":
            return _is_type(kind["keyType"]) and _is_type(kind["valueType"])
    return False


def live_files(
    commits: Iterable[tuple[int, Sequence[Action]]],
) -> tuple[dict[str, NamedFile], list[Fault]]:
    """Return the files of ours that are in the table after some sound commits, and wrong adds."""
    live: dict[str, NamedFile] = {}
    faults: list[Fault] = []
    for version, actions in commits:
        for action in actions:
            if "remove" in action:
                live.pop(action["remove"].get("path"), None)
        for action in actions:
            add = action.get("add")
            if add is None or "pulsark.entries" not in _mapping(add.get("tags")):
                continue
            if add["path"] in live and add.get("dataChange"):
                faults.append(Fault(version, f"adds {add['path']}, which the table has already"))
            live[add["path"]] = _named(add, version)
    return live, faults


def _named(add: Mapping[str, Any], version: int) -> NamedFile:
    """Return what an ``add`` of ours says; raises ``ValueError`` and the like if it is damaged."""
    path = check_relative(add["path"])
    values = add["partitionValues"]
    place = f"partition={int(values['partition'])}/ledger_id={int(values['ledger_id'])}/"
    if not path.startswith(place):
        raise ValueError(f"it is not below {place}")
    size, statistics = add["size"], json.loads(add["stats"])
    rows = statistics["numRecords"]
    for number in (size, rows):
        if not isinstance(number, int) or number < 0:
            raise ValueError("its size and numRecords must be numbers")
    if not all(isinstance(statistics.get(name, {}), dict) for name in _STATISTICS):
        raise ValueError("its statistics are damaged")
    first, last = map(int, add["tags"]["pulsark.entries"].split("-"))
    if not 0 <= first <= last:
        raise ValueError("pulsark.entries must be FIRST-LAST")
    crc = int(add["tags"]["pulsark.crc32c"])
    return NamedFile(path, int(values["ledger_id"]), size, rows, crc, version)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _version_faults(listed: Listed) -> Iterator[Fault]:
    """Yield the gaps of a log from where it begins on."""
    versions = listed.versions
    if not versions:
        return
    first = listed.first
    known = set(versions)
    if first and first not in listed.checkpoints:
        yield Fault(-1, f"it begins with commit {versions[0]}, and has no checkpoint")
    missing = [version for version in range(first, versions[-1]) if version not in known]
    if missing:
        names = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        yield Fault(-1, f"it lacks the commits {names}")


class CommitChecks:
    """What a broker knows of the commits of one log. They never change, so a sum tells them."""

    def __init__(self, table_log: DeltaLog) -> None:
        self._log = table_log
        self._sums: dict[int, int] = {}
        """CRC of each commit that was sound, by version, behind the last checkpoint."""
        self._attaches: dict[int, int] = {}
        """CRC of the commits of attaches among them, by number: it is the same in any version."""

    def check(self, listed: Listed) -> list[NamedFile]:
        """Raise ``DamagedLogError`` unless the log's end can be written behind.

        Looked at are the commits from the last checkpoint on, and that none is missing. The newest
        one may be torn: its writer died, and it is written again. Returns the files of new commits
        that are not there, or have another size. Of a log in an object store only the list is
        checked, because each file is a request. Raises ``OSError``.
        """
        faults = list(_version_faults(listed))
        unsure: list[NamedFile] = []
        if not in_object_store(self._log.directory):
            faults += self._commits(listed, unsure)
        if faults:
            raise DamagedLogError(f"{self._log.directory}: its log is damaged: {faults[0]}")
        return unsure

    def note(self, version: int, number: int, commit: bytes) -> None:
        """Know the commit of an attach, which was just written."""
        self._sums[version] = self._attaches[number] = google_crc32c.value(commit)

    def _commits(self, listed: Listed, unsure: list[NamedFile]) -> Iterator[Fault]:
        versions = listed.versions
        checkpoints = [version for version in listed.checkpoints if version in versions]
        base = checkpoints[-1] if checkpoints else -1
        if base >= 0 and not _looks_whole(self._log, base):
            yield Fault(base, "has a checkpoint that cannot be read")
        found: dict[int, list[Action]] = {}
        sums: dict[int, int] = {}
        attaches: dict[int, int] = {}
        for version in versions:
            if version < base:
                continue
            commit = self._log.read_bytes(version)
            sums[version] = google_crc32c.value(commit)
            if self._sums.get(version) == sums[version]:
                continue
            try:
                actions = parse_commit(commit, "")
                wrong = list(commit_faults(actions))
            except CorruptCommitError:
                if version == versions[-1]:
                    del sums[version]
                    break
                wrong = ["cannot be read"]
            else:
                number = attach_number(actions)
                if (
                    number is not None
                    and self._attaches.get(number, sums[version]) != sums[version]
                ):
                    wrong = ["was changed after it was written"]
                elif number is not None:
                    attaches[number] = sums[version]
            if wrong:
                yield Fault(version, wrong[0])
                return
            found[version] = actions
        if found:
            yield from self._files(found, unsure)
        self._sums = {} if unsure else sums
        kept = set(sums.values())
        known = {n: crc for n, crc in self._attaches.items() if crc in kept}
        self._attaches = {} if unsure else {**known, **attaches}

    def _files(self, new: Mapping[int, list[Action]], unsure: list[NamedFile]) -> Iterator[Fault]:
        """Look at the files that commits name which this broker did not know."""
        live, faults = live_files(sorted(new.items()))
        yield from faults
        for file in live.values():
            if _size(self._log.disk, f"{self._log.directory}/{file.path}") != file.size:
                unsure.append(file)


def _looks_whole(table_log: DeltaLog, version: int) -> bool:
    """Return whether a checkpoint begins and ends as a Parquet file does."""
    path = f"{table_log.path}/{checkpoint_name(version)}"
    file = table_log.disk.open(path)
    try:
        size, magic = table_log.disk.size(path), _PARQUET_MAGIC
        if size < 12 or file.read(0, 4) != magic:
            return False
        end = file.read(size - 8, 8)
        return end[4:] == magic and int.from_bytes(end[:4], "little") <= size - 12
    finally:
        file.close()


def _size(disk: RootFiles, path: str) -> int:
    try:
        return disk.size(path)
    except OSError:
        return -1


def log_faults(
    disk: RootFiles,
    directory: str,
    known: Mapping[str, tuple[int, int]] | None,
    rows_of: Callable[[str], int],
) -> Iterator[Fault]:
    """Yield all damage of the log in a directory, for the doctor.

    ``known`` are size and CRC of the files that the metadata store says are in the table, by path;
    ``None`` while an attach is not at its end, or the root is behind. ``rows_of`` reads how many
    rows a file has. Raises ``OSError``.
    """
    table_log = DeltaLog(disk, directory)
    listed = table_log.listed()
    versions = listed.versions
    gaps = list(_version_faults(listed))
    yield from gaps
    commits: dict[int, list[Action]] = {}
    damaged = bool(gaps)
    for version in versions:
        try:
            actions = table_log.read(version)
            wrong = list(commit_faults(actions))
        except CorruptCommitError as e:
            if version == versions[-1]:
                yield Fault(version, "is torn; the broker writes it again if it is its own")
                damaged = True
                continue
            wrong, actions = [f"cannot be read: {e}"], []
        except OSError as e:
            wrong, actions = [f"cannot be read: {e.strerror or e}"], []
        for what in wrong:
            yield Fault(version, what)
        damaged = damaged or bool(wrong)
        commits[version] = actions
    bases: dict[int, dict[str, NamedFile]] = {}
    for version in listed.checkpoints:
        try:
            bases[version] = _checkpoint(disk, table_log, version)
        except (OSError, PulsarkError, ValueError, KeyError, TypeError) as e:
            yield Fault(version, f"has a checkpoint that cannot be read: {e}")
            damaged = damaged or version == listed.first
    yield from _hint_faults(table_log)
    if damaged or not commits:
        return  # the sum of a log with holes says nothing
    yield from _sum_faults(disk, directory, commits, bases, known, rows_of)


def _checkpoint(disk: RootFiles, table_log: DeltaLog, version: int) -> dict[str, NamedFile]:
    from pulsark.storage.table.log.log_sum import checkpoint_actions  # imports pyarrow

    path = f"{table_log.path}/{checkpoint_name(version)}"
    actions = list(checkpoint_actions(disk, path))
    if (wrong := next(commit_faults(actions), None)) is not None:
        raise CorruptCommitError(f"it {wrong}")
    return live_files([(version, actions)])[0]


def _hint_faults(table_log: DeltaLog) -> Iterator[Fault]:
    if LAST_CHECKPOINT not in table_log.disk.list(table_log.path):
        return
    path = f"{table_log.path}/{LAST_CHECKPOINT}"
    try:
        file = table_log.disk.open(path)
        try:
            version = json.loads(file.read(0, 1 << 16))["version"]
        finally:
            file.close()
        if version not in table_log.checkpoints():
            yield Fault(-1, f"{LAST_CHECKPOINT} names checkpoint {version}, which is not there")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        yield Fault(-1, f"{LAST_CHECKPOINT} cannot be read: {e}")


def _sum_faults(
    disk: RootFiles,
    directory: str,
    commits: Mapping[int, list[Action]],
    bases: Mapping[int, dict[str, NamedFile]],
    known: Mapping[str, tuple[int, int]] | None,
    rows_of: Callable[[str], int],
) -> Iterator[Fault]:
    """Yield where the log as a whole differs from its checkpoints, the store and the files."""
    live: dict[str, NamedFile] = {}
    start = -1
    if min(commits) > 0:
        start = min(version for version in bases if version >= min(commits))
        live = dict(bases[start])
    for version, actions in sorted(commits.items()):
        if version <= start:
            continue
        yield from _apply(live, version, actions)
        if version in bases and _sizes(bases[version]) != _sizes(live):
            yield Fault(version, "has a checkpoint that says something else than the commits")
    if known is not None:
        for path in sorted(known.keys() - live.keys()):
            yield Fault(-1, f"it lacks {path}, which belongs to the table")
    for path, file in sorted(live.items()):
        yield from _file_faults(f"{directory}/{path}", file, disk, known, rows_of)


def _apply(live: dict[str, NamedFile], version: int, actions: Sequence[Action]) -> Iterator[Fault]:
    """Add one commit to the sum of those before it."""
    for action in actions:
        if "remove" in action:
            live.pop(action["remove"].get("path"), None)
    new, wrong = live_files([(version, actions)])
    yield from wrong
    for action in actions:
        add = action.get("add", {})
        if add.get("path") in new.keys() & live.keys() and add.get("dataChange"):
            yield Fault(version, f"adds {add['path']}, which the table has already")
    live.update(new)


def _sizes(files: Mapping[str, NamedFile]) -> dict[str, int]:
    return {path: file.size for path, file in files.items()}


def _file_faults(
    path: str,
    file: NamedFile,
    disk: RootFiles,
    known: Mapping[str, tuple[int, int]] | None,
    rows_of: Callable[[str], int],
) -> Iterator[Fault]:
    if known is not None and file.path not in known:
        yield Fault(file.version, f"names {file.path}, which does not belong to the table")
        return
    said = (file.size, file.crc32c)
    if known is not None and known[file.path] != said:
        yield Fault(
            file.version,
            "says that {} has {} bytes and CRC {}, but it was written with {} and {}".format(
                file.path, *said, *known[file.path]
            ),
        )
        return
    size = _size(disk, path)
    if size < 0:
        if known is None:  # otherwise the list of the files says so
            yield Fault(file.version, f"names {file.path}, which is not there")
    elif size != file.size:
        yield Fault(file.version, f"says that {file.path} has {file.size} bytes; it has {size}")
    else:
        yield from _row_faults(path, file, rows_of)


def _row_faults(path: str, file: NamedFile, rows_of: Callable[[str], int]) -> Iterator[Fault]:
    try:
        rows = rows_of(path)
    except Exception:  # noqa: BLE001 - damage may take any form
        return  # its bytes are damaged, which the check of the files says
    if rows != file.rows:
        yield Fault(file.version, f"says that {file.path} has {file.rows} rows; it has {rows}")
