"""Files of a topic's table, as the broker tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class TableFile(NamedTuple):
    """A Parquet file with all rows of consecutive entries of one ledger, both ends inclusive.

    ``path`` is relative to the table's directory; ``size`` in bytes.
    """

    path: str
    first: int
    last: int
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Files by name of a partition and ledger; each is in one of the directories, or in all."""

    directories: tuple[str, ...]
    files: Mapping[tuple[str, int], tuple[TableFile, ...]]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableFiles:
        """Read the ``tableFiles`` answer."""
        return cls(
            tuple(data["directories"]),
            {
                (partition["name"], ledger["ledgerId"]): tuple(
                    _file(file) for file in ledger["files"]
                )
                for partition in data["partitions"]
                for ledger in partition["ledgers"]
            },
        )


def _file(data: Mapping[str, Any]) -> TableFile:
    first, last = data["entries"]
    return TableFile(data["path"], first, last, data["rows"], data["size"])


@dataclass(frozen=True, slots=True)
class PastTable:
    """A topic's table as it was: ``files`` are all of that version, -1 if there was none yet.

    Times are the broker's, in milliseconds since the epoch; ``created_ms`` is the topic's.
    ``later`` is what was sealed after that version of ledgers that the topic lost since.
    """

    version: int
    now_ms: int
    created_ms: int
    files: TableFiles
    later: TableFiles
    later_whole: bool

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PastTable:
        """Read the answer of ``table/past``."""
        return cls(
            data["version"],
            data["nowMs"],
            data["createdMs"],
            TableFiles.from_json(data),
            TableFiles.from_json({**data, "partitions": data["later"]}),
            data["laterWhole"],
        )


NO_FILES = TableFiles((), {})
