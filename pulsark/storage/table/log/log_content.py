"""What a log says that its table has, for a metadata store that does not know it.

Everything blocks. Only commits of ours count: what others wrote to a log was never part of the
topic.

Imports pyarrow where there is a checkpoint: never use it in a broker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsark.errors import CorruptEntryError
from pulsark.schemas.column_types import BINARY, ColumnType
from pulsark.storage.table.files.record import DataFile, Published, TableRecord
from pulsark.storage.table.files.root_files import is_there
from pulsark.storage.table.log.delta_log import (
    Action,
    CorruptCommitError,
    DeltaLog,
    attach_number,
    attach_time,
    checkpoint_name,
    files_of,
    is_commit_of,
    is_of_table,
    publishes_of,
)
from pulsark.storage.table.log.log_sum import checkpoint_actions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.storage.roots.root_files import RootFiles


@dataclass
class LogContent:
    """A log up to its last attach."""

    attached: int = 0
    """The number of that; 0 without one."""
    time_ms: int = 0
    """When it was decided."""
    created_ms: int = 0
    first_version: int = 0
    value: ColumnType = BINARY
    differs: bool = False
    """Whether it is the log of another table, or has another attach than the one that is known."""
    files: dict[str, DataFile] = field(default_factory=dict)
    """The table's files, by path."""
    left: dict[str, DataFile] = field(default_factory=dict)
    """Files that left the table and still exist."""

    published: dict[str, Published] = field(default_factory=dict)
    """The last bulk publish of each origin, by its id."""

    def apply(self, record: TableRecord, actions: Iterable[Action]) -> None:
        """One commit of ours more."""
        actions = list(actions)
        for action in actions:
            if "metaData" in action:
                self._apply_metadata(record, action["metaData"])
            if "remove" in action:
                path = action["remove"]["path"]
                if path in self.files:
                    self.left[path] = self.files.pop(path)
        for file in files_of(actions):
            self.files[file.path] = file
            self.left.pop(file.path, None)
        self.published.update((done.ident, done) for done in publishes_of(actions))
        number = attach_number(actions)
        if number is None:
            return
        self.attached, self.time_ms = number, attach_time(actions)
        if record.intent is not None and number == record.attached:
            self.differs |= not is_commit_of(actions, record.intent)

    def _apply_metadata(self, record: TableRecord, metadata: dict[str, Any]) -> None:
        self.differs |= not is_of_table(metadata, record.table_id)
        self.created_ms = metadata.get("createdTime") or self.created_ms
        columns = json.loads(metadata["schemaString"])["fields"]
        self.value = next(column["type"] for column in columns if column["name"] == "value")

    def to_json(self) -> dict[str, Any]:
        """For a reply of the table process."""
        return {
            "attached": self.attached,
            "timeMs": self.time_ms,
            "createdMs": self.created_ms,
            "firstVersion": self.first_version,
            "value": self.value,
            "differs": self.differs,
            "files": [file.without_statistics().to_json() for file in self.files.values()],
            "left": [file.without_statistics().to_json() for file in self.left.values()],
            "published": [list(done) for done in self.published.values()],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> LogContent:
        """The inverse."""
        files, left = (map(DataFile.from_json, document[name]) for name in ("files", "left"))
        return cls(
            document["attached"],
            document["timeMs"],
            document["createdMs"],
            document["firstVersion"],
            document["value"],
            document["differs"],
            {file.path: file for file in files},
            {file.path: file for file in left},
            {done.ident: done for done in map(Published.from_json, document["published"])},
        )


def log_content(disk: RootFiles, directory: str, record: TableRecord) -> LogContent:
    """The content of a directory's log, which may have more than ``record`` knows.

    Raises ``OSError``, or ``CorruptEntryError`` if commits are missing or damaged.
    """
    table_log = DeltaLog(disk, directory)
    versions = table_log.versions()
    found = LogContent(first_version=table_log.first())
    if found.first_version:
        path = f"{table_log.path}/{checkpoint_name(found.first_version)}"
        found.apply(record, filter(_is_ours, checkpoint_actions(disk, path)))
        versions = [version for version in versions if version >= found.first_version]
    if versions != list(range(found.first_version, found.first_version + len(versions))):
        raise CorruptEntryError(f"{directory}: its log lacks commits: it has {len(versions)}")
    for version in versions:
        try:
            actions = table_log.read(version)
            if version == 0 or attach_number(actions) is not None:
                found.apply(record, actions)
        except CorruptCommitError:
            if version != versions[-1]:
                raise
        except (KeyError, TypeError, AttributeError, ValueError, StopIteration) as e:
            raise CorruptCommitError(f"{directory}: commit {version} is none: {e!r}") from None
    found.left = {p: file for p, file in found.left.items() if is_there(disk, f"{directory}/{p}")}
    return found


def _is_ours(action: Action) -> bool:
    return "add" not in action or "pulsark.entries" in (action["add"].get("tags") or {})
