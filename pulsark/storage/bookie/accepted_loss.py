"""What of a bookie's journal an operator gave up, after damage that nothing can mend.

A damaged range may have held anything, so whatever might have been in it is *unknown*, and a
ledger whose end is unknown cannot be opened. Where there is no other copy, only a person can say
that life goes on without it. That is kept beside the segment, in ``<segment>.lost``: what is in
there is absent from then on, as if it had never been written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError
from pulsark.storage.bookie.index_checkpoint import CHECKPOINT_NAME
from pulsark.storage.bookie.journal_format import segment_id_of, segment_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.runtime import Disk
    from pulsark.storage.bookie.index import BookieIndex

SUFFIX = ".lost"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """What of one segment was given up."""

    ranges: Sequence[tuple[int, int]]
    """Damaged ranges ``(start, end)`` of the file."""
    entries: Sequence[tuple[int, int]]
    """Entries ``(ledger, entry)`` whose bytes fail their checksum."""
    accepted_ms: int

    def covers(self, damage: tuple[int, int]) -> bool:
        """Whether all of this range was given up."""
        return any(start <= damage[0] and damage[1] <= end for start, end in self.ranges)

    def and_also(self, earlier: AcceptedLoss | None) -> AcceptedLoss:
        """This and what was given up before."""
        if earlier is None:
            return self
        ranges = sorted({*earlier.ranges, *self.ranges})
        return AcceptedLoss(ranges, sorted({*earlier.entries, *self.entries}), self.accepted_ms)

    def encode(self) -> bytes:
        """One line of JSON."""
        value = {
            "version": FORMAT_VERSION,
            "ranges": self.ranges,
            "entries": self.entries,
            "acceptedAt": self.accepted_ms,
        }
        return json.dumps(value).encode() + b"\n"


def lost_path(journal_dir: str, segment_id: int) -> str:
    """Where it is kept what of a segment was given up."""
    return f"{journal_dir}/{segment_name(segment_id)}{SUFFIX}"


def load_losses(disk: Disk, journal_dir: str) -> dict[int, AcceptedLoss]:
    """What was given up, by segment. ``ConfigError`` if that cannot be read."""
    found = {}
    for name in disk.list(journal_dir):
        segment_id = segment_id_of(name.removesuffix(SUFFIX))
        if name.endswith(SUFFIX) and segment_id is not None:
            found[segment_id] = _load(disk, f"{journal_dir}/{name}")
    return found


def _load(disk: Disk, path: str) -> AcceptedLoss:
    size = disk.size(path)
    file = disk.open(path)
    try:
        value = json.loads(file.read(0, size))
        if value["version"] != FORMAT_VERSION:
            raise ValueError(f"version {value['version']}")
        return AcceptedLoss(
            [(int(start), int(end)) for start, end in value["ranges"]],
            [(int(ledger_id), int(entry_id)) for ledger_id, entry_id in value["entries"]],
            int(value["acceptedAt"]),
        )
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(
            f"{path} cannot be read ({e}): remove it, and accept the loss again with "
            "`pulsark doctor`"
        ) from e
    finally:
        file.close()


def apply_losses(index: BookieIndex, losses: dict[int, AcceptedLoss]) -> None:
    """Take out of a recovered index what was given up."""
    for segment_id, loss in losses.items():
        segment = index.segments.get(segment_id)
        if segment is None:
            continue
        segment.damaged = [damage for damage in segment.damaged if not loss.covers(damage)]
        for ledger_id, entry_id in loss.entries:
            index.forget(ledger_id, entry_id, segment_id)


def accept_loss(
    disk: Disk, journal_dir: str, ledger_dir: str, segment_id: int, loss: AcceptedLoss
) -> None:
    """Give up a part of a segment, durably. Blocks; the bookie must not be in use.

    The checkpoint goes: it may know entries of what is lost. The next start reads all segments.
    """
    earlier = load_losses(disk, journal_dir).get(segment_id)
    disk.remove(f"{ledger_dir}/{CHECKPOINT_NAME}")
    disk.write_atomic(lost_path(journal_dir, segment_id), loss.and_also(earlier).encode())
