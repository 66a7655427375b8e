"""The changes of one commit of the metadata store. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pulsark.errors import MetadataRefusedError
from pulsark.limits import METADATA_COMMIT_BYTES_MAX, METADATA_COMMIT_CHANGES_MAX
from pulsark.metadata.store import ANY_VERSION, check_value, split_path

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Put:
    """Store a value; see ``MetadataStore.put``."""

    path: str
    value: bytes
    expected_version: int = ANY_VERSION
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a value; see ``MetadataStore.delete``."""

    path: str
    expected_version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but refuse the commit unless the path is at a version, or ``ABSENT``."""

    path: str
    expected_version: int


Change: TypeAlias = Put | Delete | Check


def check_changes(changes: Sequence[Change]) -> None:
    """Raise ``MetadataRefusedError`` unless every store can make these changes in one commit.

    No path may occur twice: some stores compare versions with the state before the commit, others
    with the result of its earlier changes.
    """
    if not 0 < len(changes) <= METADATA_COMMIT_CHANGES_MAX:
        raise MetadataRefusedError(
            f"a commit has 1 to {METADATA_COMMIT_CHANGES_MAX} changes, not {len(changes)}"
        )
    size = 0
    for change in changes:
        split_path(change.path)
        if isinstance(change, Put):
            check_value(change.path, change.value)
            size += len(change.value)
    if size > METADATA_COMMIT_BYTES_MAX:
        raise MetadataRefusedError(
            f"the values of a commit have {size} bytes; "
            f"at most {METADATA_COMMIT_BYTES_MAX} are allowed"
        )
    if len(changes) > 1 and len({change.path for change in changes}) < len(changes):
        raise MetadataRefusedError("a commit names a path twice")
