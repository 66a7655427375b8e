"""Sizes of a bookie's journal and index."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

MAX_SEGMENT_BYTES = 3 << 30
"""The index keeps offsets in 32 bits; a segment ends at this size whatever is configured."""

MIN_SEGMENT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """All sizes in bytes."""

    journal_max_size: int = 2048 * MIB
    """A segment file ends at this size, or at a tenth of the disk if that is less."""
    max_group_bytes: int = 8 * MIB
    """A group takes no further run beyond this; a larger single run is a group of its own."""
    checkpoint_bytes: int = 64 * MIB
    """The index is checkpointed after this much journal, which bounds the replay at a start."""
    checkpoint_records: int = 250_000
    """As ``checkpoint_bytes``, in records: for journals of tiny entries."""
    reserve_bytes: int = 64 * MIB
    """Free space kept for cursors, fences and deletes, or 5 % of the disk if that is less."""
    compact_below: float = 0.2
    """A segment whose live part is below this is emptied by copying the live entries forward."""
    compact_bytes: int = MIB
    """So is one whose live entries take less than this, as many restarts leave them behind;
    or less than a quarter of ``journal_max_size``, where that is less."""
    copy_bytes: int = MIB
    """Live entries are copied forward in runs of about this size."""
    ledgers_a_turn: int = 512
    """Ledgers that upkeep looks at before the event loop has its turn: a number of them."""

    def segment_limit(self, disk_bytes: int) -> int:
        """Bytes at which a segment ends on a disk of this size."""
        return max(
            MIN_SEGMENT_BYTES, min(self.journal_max_size, MAX_SEGMENT_BYTES, disk_bytes // 10)
        )

    def reserve(self, disk_bytes: int) -> int:
        """Bytes kept back on a disk of this size."""
        return min(self.reserve_bytes, disk_bytes // 20)
