"""What a log says that its table has: the sum of all commits, by any engine. Everything blocks.

Old commits may be gone; then the sum begins at a checkpoint.

Imports pyarrow where there is a checkpoint: never use it in a broker.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsark.errors import CorruptEntryError
from pulsark.storage.table.log.delta_log import (
    APP_ID,
    Action,
    CorruptCommitError,
    DeltaLog,
    checkpoint_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pulsark.storage.roots.root_files import RootFiles

Key = tuple[str, str]
"""A file as Delta tells it from others: its path, and which of its rows are deleted."""


@dataclass
class LogSum:
    """A log up to a version."""

    version: int = -1
    """The newest one that can be read; -1 without any."""
    files: dict[Key, Action] = field(default_factory=dict)
    """The ``add`` of each file that is in the table."""
    ever: dict[str, Action] = field(default_factory=dict)
    """The last ``add`` of each path that ever was, as far as the log tells."""

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """One commit more."""
        self.version = version
        actions = list(actions)
        for action in actions:
            if "remove" in action:
                self.files.pop(_key(action["remove"]), None)
        for action in actions:
            if "add" in action:
                self.files[_key(action["add"])] = self.ever[action["add"]["path"]] = action["add"]


def log_sum(disk: RootFiles, directory: str) -> LogSum:
    """The sum of a whole log; a damaged newest commit does not count.

    Raises ``OSError``, or ``CorruptEntryError`` if commits are missing or damaged.
    """
    table_log = DeltaLog(disk, directory)
    versions = table_log.versions()
    found = LogSum()
    if versions and versions[0] > 0:
        found = _from_checkpoint(disk, directory, versions[-1])
        versions = [version for version in versions if version > found.version]
    expected = list(range(found.version + 1, found.version + 1 + len(versions)))
    if versions != expected:
        raise CorruptEntryError(f"{directory}: its log lacks commits: it has {len(versions)}")
    for version in versions:
        try:
            found.apply(version, table_log.read(version))
        except CorruptCommitError:
            if version != versions[-1]:
                raise
        except (KeyError, TypeError, AttributeError) as e:
            raise CorruptCommitError(f"{directory}: commit {version} is none: {e!r}") from None
    return found


def _from_checkpoint(disk: RootFiles, directory: str, newest: int) -> LogSum:
    table_log = DeltaLog(disk, directory)
    for version in reversed(table_log.checkpoints()):
        if version <= newest:
            found = LogSum()
            path = f"{table_log.path}/{checkpoint_name(version)}"
            found.apply(version, checkpoint_actions(disk, path))
            return found
    raise CorruptEntryError(f"{directory}: its log begins in the middle, without a checkpoint")


def checkpoint_actions(disk: RootFiles, path: str) -> Iterator[Action]:
    """What a checkpoint says of files, columns and bulk publishes; ``CorruptEntryError``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pulsark.storage.table.files.seal import read_whole

    try:
        file = pq.ParquetFile(io.BytesIO(read_whole(disk, path)))
        rows = file.read(columns=["add", "metaData", "txn"])
        for transaction in rows.column("txn").to_pylist():
            # That of the last attach is in the commit of the same version, with all it did.
            if transaction is not None and transaction["appId"] != APP_ID:
                yield {"txn": transaction}
        for metadata in rows.column("metaData").to_pylist():
            if metadata is not None:
                yield {"metaData": metadata}
        for add in rows.column("add").to_pylist():
            if add is not None:
                found = {name: value for name, value in add.items() if value is not None}
                for name in ("partitionValues", "tags"):
                    found[name] = dict(add.get(name) or ())
                found.pop("dataChange", None)  # of no file a checkpoint says it
                yield {"add": found}
    except (pa.ArrowException, KeyError, TypeError, ValueError) as e:
        raise CorruptEntryError(f"{path} cannot be read: {e!r}") from None


def _key(action: Mapping[str, Any]) -> Key:
    vector = action.get("deletionVector") or {}
    return action["path"], "".join(
        str(vector.get(name, "")) for name in ("storageType", "pathOrInlineDv", "offset")
    )
