"""Files that are prepared for a bulk publish: how they are named, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pulsark.storage.table.files.record import DataFile

if TYPE_CHECKING:
    from collections.abc import Mapping

STAGING = "_staged"
"""Directory of a table for files that are no part of it; engines pass over such names."""


@dataclass(frozen=True, slots=True)
class StagedLedger:
    """Files that are to become one ledger of a partition, in the order of their entries.

    Their paths are names in the staging directory, their ledger ids mean nothing yet. ``length``
    is that of all entries in bytes, about.
    """

    partition: int
    length: int
    files: tuple[DataFile, ...]

    def __post_init__(self) -> None:
        end = -1
        for file in self.files:
            if file.first_entry_id != end + 1 or file.last_entry_id < file.first_entry_id:
                raise ValueError(f"{file.path}: its entries do not follow entry {end}")
            if file.partition != self.partition:
                raise ValueError(f"{file.path} is of partition {file.partition}")
            check_staged_name(file.path)
            end = file.last_entry_id
        if end < 0:
            raise ValueError("a ledger without entries")

    @property
    def entries(self) -> int:
        """How many there are."""
        return self.files[-1].last_entry_id + 1

    @property
    def rows(self) -> int:
        """Messages of all entries."""
        return sum(file.rows for file in self.files)

    def as_ledger(self, ledger_id: int) -> list[DataFile]:
        """The files as those of a ledger, in their order."""
        return [
            replace(file, ledger_id=ledger_id, path=_path(self.partition, ledger_id, file))
            for file in self.files
        ]

    def to_json(self) -> dict[str, Any]:
        """As it stands in requests."""
        return {
            "partition": self.partition,
            "length": self.length,
            "files": [file.to_json() for file in self.files],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StagedLedger:
        """The inverse of ``to_json``; raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        files = tuple(DataFile.from_json(file) for file in document["files"])
        return cls(int(document["partition"]), int(document["length"]), files)


def staged_name(time_ms: int, nonce: str, number: int) -> str:
    """A name in the staging directory; ``time_ms`` is when the writer began."""
    return f"{time_ms}-{nonce}-{number}.parquet"


def check_staged_name(name: str) -> None:
    """Raise ``ValueError`` unless it is a name as ``staged_name`` gives them."""
    time, _, rest = name.partition("-")
    nonce, _, number = rest.removesuffix(".parquet").partition("-")
    parts = (time, nonce, number)
    if not name.endswith(".parquet") or not all(p.isascii() and p.isalnum() for p in parts):
        raise ValueError(f"{name[:80]!r} is not the name of a staged file")
    if not time.isdigit() or len(name) > 120:
        raise ValueError(f"{name[:80]!r} does not begin with a time")


def ledger_directory(partition: int, ledger_id: int) -> str:
    """Where the files of a ledger are, below the table's directory."""
    return f"partition={partition}/ledger_id={ledger_id}"


def _path(partition: int, ledger_id: int, file: DataFile) -> str:
    name = f"part-{file.first_entry_id:012d}-{file.path.partition('-')[2]}"
    return f"{ledger_directory(partition, ledger_id)}/{name}"
