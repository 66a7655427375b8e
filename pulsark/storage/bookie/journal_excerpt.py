"""Where entries of a ledger lie in a bookie's journal: another process can read them by itself.

What it says holds until the journal collects its garbage. Then a file is missing, or has another
epoch, and reading says so: never does it give other entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import UnreadableExcerptError
from pulsark.storage.bookie.index import Extent
from pulsark.storage.bookie.segment_reader import read_entries
from pulsark.storage.bookie.segment_window import SegmentFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.runtime import Disk

EXCERPT_BYTES: Final = 4 << 20
"""Bytes of entries after which an excerpt ends."""

_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class JournalExcerpt:
    """Consecutive entries of a ledger. ``epochs`` are those of the segments they lie in."""

    directory: str
    ledger_id: int
    epochs: dict[int, int]
    extents: Sequence[Extent]

    @property
    def last(self) -> int:
        """The last entry."""
        return self.extents[-1].last

    @property
    def size(self) -> int:
        """Bytes of the entries, about."""
        return sum([extent.size for extent in self.extents])

    def entries(self, disk: Disk) -> Iterator[tuple[int, bytes]]:
        """Read them; ``UnreadableExcerptError`` at the first that cannot be."""
        files = SegmentFiles(disk, self.directory)
        try:
            for extent in self.extents:
                found = read_entries(files, self.epochs, self.ledger_id, [extent], _NO_LIMIT)
                yield from found.entries
                if found.corrupt is not None:
                    raise UnreadableExcerptError(
                        f"entry {self.ledger_id}:{found.corrupt} is not where it was in "
                        f"{files.path(extent.segment_id)}"
                    )
        except OSError as e:
            raise UnreadableExcerptError(f"{self.directory} cannot be read: {e}") from e
        finally:
            files.close()

    def to_json(self) -> dict[str, Any]:
        """For ``from_json``."""
        return {
            "directory": self.directory,
            "ledgerId": self.ledger_id,
            "epochs": list(self.epochs.items()),
            "extents": self.extents,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> JournalExcerpt:
        """What ``to_json`` gave."""
        return cls(
            document["directory"],
            document["ledgerId"],
            dict(document["epochs"]),
            [Extent(*values) for values in document["extents"]],
        )
