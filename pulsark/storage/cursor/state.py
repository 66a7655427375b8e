"""Which entries of a managed ledger one subscription has acknowledged. Pure.

``AckedSet`` is the knowledge itself, and a join-semilattice: within one *era* the mark-delete
position only rises, acknowledged entries are only added, and bits of a batch are only cleared.
So two of them merge into one in any order, any number of times. That is what makes the cursor
log simple: a change, a piece of a large cursor and a whole snapshot are all ``AckedSet`` values
that are merged at replay. A seek is the only way back; it begins the next era, and what belongs
to an earlier one is void.

``CursorState`` adds what needs to know the ledgers: which positions exist, and where the
mark-delete position can go over the end of a ledger.

Entry ids are below 2^32.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from pyroaring import BitMap

from pulsark.limits import BATCH_MASKS_WEIGHT_MAX
from pulsark.storage.cursor.batch_masks import BatchMasks, weight_of
from pulsark.storage.position_set import MAX_ENTRY_ID
from pulsark.wire.ack_set import mask_of_words, words_of_mask
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_ACK_SET_WORDS = 1 << 14
"""Longer ack sets are ignored: no batch has a million messages, and they would take memory."""

_PAST_LEDGER_END = 2**62


class Ledgers(Protocol):
    """What a cursor must know of its managed ledger."""

    @property
    def last_confirmed(self) -> Position:
        """The last entry there is, or (-1, -1)."""

    def next_position(self, position: Position) -> Position:
        """The first position after ``position`` that holds, or will hold, an entry.

        Over the end of a closed ledger, and over ledgers that are empty or gone, it is in a
        later ledger; ``position`` itself need not exist.
        """

    def entries_between(self, after: Position, last: Position) -> int:
        """How many entries exist in ``(after, last]``; neither end need exist."""

    def position_at(self, index: int) -> Position:
        """The entry with ``index`` entries before it; there must be one."""


class AckedSet:
    """A mark-delete position, acknowledged entries above it, and masks of batches in part acked.

    Invariants: every entry in ``acked`` and every key of ``masks`` is above ``mark_delete``; no
    entry is in both; no bitmap is empty and no mask is 0; ``count`` is the number of entries in
    ``acked``.
    """

    __slots__ = ("acked", "count", "era", "mark_delete", "masks")

    def __init__(self, mark_delete: Position = EARLIEST, era: int = 0) -> None:
        self.mark_delete = mark_delete
        self.era = era
        self.acked: dict[int, BitMap] = {}
        self.masks = BatchMasks()
        self.count = 0

    def acks_from(self, ledger_id: int, entry_id: int) -> bool:
        """Whether there may be any acknowledged entry or message at this position or after it."""
        if self.masks or self.mark_delete >= (ledger_id, entry_id):
            return True
        if not self.acked:
            return False
        highest = max(self.acked)
        return (highest, self.acked[highest].max()) >= (ledger_id, entry_id)

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        if position <= self.mark_delete:
            return True
        entries = self.acked.get(position[0])
        return entries is not None and position[1] in entries

    def merge(self, other: AckedSet) -> None:
        """Know also what ``other`` knows. An earlier era is void, a later one wins."""
        if other.era < self.era:
            return
        self.advance(other.mark_delete, other.era)
        for ledger_id, entries in other.acked.items():
            self.add_entries(ledger_id, entries)
        for ledger_id, masks in other.masks.ledgers.items():
            for entry_id, mask in masks.items():
                self.narrow(Position(ledger_id, entry_id), mask)

    def advance(self, mark_delete: Position, era: int) -> None:
        """Know also that everything up to a position is acknowledged, as of an era."""
        if era > self.era:
            self._clear(mark_delete, era)
        elif era == self.era and mark_delete > self.mark_delete:
            self._raise_mark_delete(mark_delete)

    def copy(self) -> AckedSet:
        """An independent copy."""
        twin = AckedSet(self.mark_delete, self.era)
        twin.acked = {ledger_id: BitMap(entries) for ledger_id, entries in self.acked.items()}
        twin.masks = self.masks.copy()
        twin.count = self.count
        return twin

    def _clear(self, mark_delete: Position, era: int) -> None:
        self.mark_delete = mark_delete
        self.era = era
        self.acked = {}
        self.masks = BatchMasks()
        self.count = 0

    def add_entries(self, ledger_id: int, entries: BitMap) -> None:
        """Add acknowledged entries, without those that the mark-delete position covers."""
        if ledger_id < self.mark_delete.ledger_id:
            return
        mine = self.acked.get(ledger_id)
        before = 0 if mine is None else len(mine)
        if mine is None:
            mine = BitMap(entries)
        else:
            mine |= entries
        if ledger_id == self.mark_delete.ledger_id:
            mine.remove_range(0, self.mark_delete.entry_id + 1)
        if mine:
            self.acked[ledger_id] = mine
        self.count += len(mine) - before
        if self.masks:
            self.masks.discard_entries(ledger_id, entries)

    def narrow(self, position: Position, mask: int) -> None:
        """AND a mask onto an entry, unless it is acknowledged as a whole."""
        if self.is_acked(position):
            return
        before = self.masks.get(position)
        rest = mask if before is None else mask & before
        if rest:
            self.masks.put(position, rest)
        else:
            self.add_entries(position.ledger_id, BitMap([position.entry_id]))

    def _raise_mark_delete(self, position: Position) -> None:
        """Move the mark-delete position up and forget what it covers now."""
        ledger_id, covered = self.mark_delete
        self.mark_delete = position
        if ledger_id != position.ledger_id:
            covered = -1
            self._forget_ledgers_below(position.ledger_id)
        self._forget_in_ledger(covered + 1)

    def _forget_ledgers_below(self, ledger_id: int) -> None:
        for gone in [i for i in self.acked if i < ledger_id]:
            self.count -= len(self.acked.pop(gone))
        self.masks.drop_ledgers_below(ledger_id)

    def _forget_in_ledger(self, first: int) -> None:
        """Forget entries from ``first`` to the mark-delete position; nothing is known before."""
        ledger_id, last = self.mark_delete
        if self.masks:
            self.masks.discard_range(ledger_id, first, last)
        entries = self.acked.get(ledger_id)
        if entries is not None and last >= 0:
            self.count -= entries.range_cardinality(0, last + 1)
            entries.remove_range(0, last + 1)
            if not entries:
                del self.acked[ledger_id]


class CursorState(AckedSet):
    """The acknowledgements of one cursor over the ledgers of its topic.

    Every change is also noted as *unsaved* until ``take_unsaved`` hands the notes to the log,
    unless there is no log (``note_unsaved`` false).
    """

    __slots__ = (
        "_known",
        "_ledgers",
        "_note_unsaved",
        "_reborn",
        "_unsaved",
        "_unsaved_masks",
        "changed",
    )

    def __init__(
        self,
        ledgers: Ledgers,
        mark_delete: Position = EARLIEST,
        era: int = 0,
        *,
        note_unsaved: bool = True,
    ) -> None:
        super().__init__(mark_delete, era)
        self._ledgers = ledgers
        self._known: dict[int, int] = {}
        """Per ledger the highest entry id that was seen to exist: saves asking the ledgers."""
        self._note_unsaved = note_unsaved
        self._unsaved: dict[int, BitMap] = {}
        self._unsaved_masks: set[Position] = set()
        self._reborn = False
        self.changed = False
        """Whether there is anything unsaved."""

    @classmethod
    def of(cls, saved: AckedSet, ledgers: Ledgers) -> CursorState:
        """The state that was saved, brought up to date with the ledgers."""
        state = cls(ledgers, saved.mark_delete, saved.era)
        twin = saved.copy()
        state.acked, state.masks, state.count = twin.acked, twin.masks, twin.count
        state.ledgers_changed()
        return state

    # -- changes -------------------------------------------------------------------------------

    def ack(  # noqa: C901 - for each acknowledgement: a call costs more than it tells
        self,
        position: Position,
        ack_set: Sequence[int] | None = None,
        batch_size: int | None = None,
    ) -> int:
        """Acknowledge an entry, or with ``ack_set`` the messages of it whose bit is 0.

        Returns how many of its messages remain unacknowledged: 0 if the entry is done (also if
        it was before, or does not exist), else the number of ones left in its mask.
        """
        if position <= self.mark_delete or not self._exists(position):
            return 0
        ledger_id, entry_id = position
        entries = self.acked.get(ledger_id)
        if entries is not None and entry_id in entries:
            return 0
        if ack_set is not None:
            rest = self._ack_part(position, ack_set, batch_size)
            if rest:
                return rest
        if self.masks:
            self.masks.discard(position)
        self.changed = True
        after_ledger, after_entry = self.mark_delete
        if ledger_id == after_ledger and entry_id == after_entry + 1:
            self.mark_delete = position
            if self.acked:
                self._advance()
            return 0
        if entries is None:
            entries = self.acked[ledger_id] = BitMap()
        entries.add(entry_id)
        self.count += 1
        if entry_id == 0:
            self._advance()
            if position <= self.mark_delete:
                return 0
        if self._note_unsaved:
            unsaved = self._unsaved.get(ledger_id)
            if unsaved is None:
                unsaved = self._unsaved[ledger_id] = BitMap()
            unsaved.add(entry_id)
        return 0

    def ack_cumulative(
        self,
        position: Position,
        ack_set: Sequence[int] | None = None,
        batch_size: int | None = None,
    ) -> bool:
        """Acknowledge everything up to ``position``, whose entry id may be -1.

        With ``ack_set``: everything before it, and those of its messages whose bit is 0. Says
        whether anything changed. A position beyond the last entry is ignored.
        """
        if position.entry_id > MAX_ENTRY_ID:
            position, ack_set = Position(position.ledger_id, MAX_ENTRY_ID), None
        if position <= self.mark_delete or position > self._ledgers.last_confirmed:
            return False
        before = (self.mark_delete, self.masks.get(position))
        if ack_set is None or not any(ack_set):
            self._move_to(position)
            return True
        previous = Position(position.ledger_id, max(position.entry_id, 0) - 1)
        if previous > self.mark_delete:
            self._move_to(previous)
        self.ack(position, ack_set, batch_size)
        return before != (self.mark_delete, self.masks.get(position))

    def reset(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        """Make ``position`` the first entry that is not acknowledged, and forget everything else.

        ``ack_set`` is the state in which its batch begins.
        """
        position = Position(position.ledger_id, max(position.entry_id, 0))
        self._clear(Position(position.ledger_id, position.entry_id - 1), self.era + 1)
        self._known = {}
        if ack_set and any(ack_set) and len(ack_set) <= MAX_ACK_SET_WORDS:
            self.masks.put(position, mask_of_words(ack_set))
        self._reborn = True
        self.changed = True

    def restore(self, acked: AckedSet) -> None:
        """Become what ``acked`` says, and forget everything else."""
        self._clear(acked.mark_delete, self.era + 1)
        self._known = {}
        for ledger_id, entries in acked.acked.items():
            self.add_entries(ledger_id, entries)
        self.masks = acked.masks.copy()
        self._reborn = True
        self.changed = True
        self.ledgers_changed()

    def ledgers_changed(self) -> None:
        """Move mark-delete on after the ledgers changed: one was trimmed or came out empty.

        Acknowledgements do it by themselves.
        """
        if self.acked:
            self._advance()

    def take_unsaved(self) -> AckedSet:
        """What changed since the last call, as a value that merges into what was saved before."""
        if self._reborn:
            unsaved = self.copy()
        else:
            unsaved = AckedSet(self.mark_delete, self.era)
            for ledger_id, entries in self._unsaved.items():
                unsaved.add_entries(ledger_id, entries)
            for position in self._unsaved_masks:
                mask = self.masks.get(position)
                if mask is not None:
                    unsaved.masks.put(position, mask)
        self._unsaved = {}
        self._unsaved_masks = set()
        self._reborn = False
        self.changed = False
        return unsaved

    # -- questions -------------------------------------------------------------------------------

    def ack_set_of(self, position: Position) -> list[int] | None:
        """The ack set to send with an entry; ``None`` if none of its messages is acknowledged."""
        mask = self.masks.get(position)
        return None if mask is None else words_of_mask(mask)

    def backlog(self) -> int:
        """How many entries are not acknowledged as a whole."""
        ledgers = self._ledgers
        return ledgers.entries_between(self.mark_delete, ledgers.last_confirmed) - self.count

    def next_unacked(self, after: Position) -> Position:
        """The first position after ``after`` that is not acknowledged as a whole.

        It may be the one behind the last entry: where the next one will be.
        """
        position = max(after, self.mark_delete)
        while True:
            position = self._ledgers.next_position(position)
            entries = self.acked.get(position.ledger_id)
            if entries is None or position.entry_id not in entries:
                return position
            position = Position(position.ledger_id, _last_of_run(entries, position.entry_id))

    @property
    def last_confirmed(self) -> Position:
        """The last entry there is, or (-1, -1)."""
        return self._ledgers.last_confirmed

    def frozen(self) -> CursorState:
        """An independent copy, to be looked at in several turns of the event loop."""
        return CursorState.of(self, self._ledgers)

    def nth_unacked(self, count: int) -> tuple[int, Position | None]:
        """How many entries are not acknowledged, at most ``count``, and the last of so many.

        The cost does not depend on how many runs they are.
        """
        start = self._ledgers.next_position(self.mark_delete)
        before = self._ledgers.entries_between(EARLIEST, self.mark_delete)
        acked_ledgers = sorted(i for i in self.acked if i >= start.ledger_id)
        acked_before = [0, *accumulate(len(self.acked[i]) for i in acked_ledgers)]

        def unacked_through(entries: int, last: Position) -> int:
            index = bisect_left(acked_ledgers, last.ledger_id)
            acked = acked_before[index]
            if index < len(acked_ledgers) and acked_ledgers[index] == last.ledger_id:
                acked += self.acked[last.ledger_id].rank(last.entry_id)
            return entries - acked

        last = self.last_confirmed
        there = self._ledgers.entries_between(self.mark_delete, last)
        count = min(count, unacked_through(there, last)) if there else 0
        if count <= 0:
            return 0, None
        low, high = count, there  # so many entries have at least ``count`` among them
        while low < high:
            middle = (low + high) // 2
            if unacked_through(middle, self._ledgers.position_at(before + middle - 1)) < count:
                low = middle + 1
            else:
                high = middle
        return count, self._ledgers.position_at(before + low - 1)

    def unacked_runs(
        self, after: Position, last: Position, at_most: int
    ) -> list[tuple[Position, Position]]:
        """The first entries in ``(after, last]`` that are not acknowledged, as ``(first, last)``.

        A run lies within one ledger. The cost is a few look-ups a run, however long it is. There
        may be a million: ``pulsark.dispatch.subscription.unacked_runs`` goes through all of them,
        and gives the event loop its turns.
        """
        last = min(last, self._ledgers.last_confirmed)
        runs: list[tuple[Position, Position]] = []
        position = self.next_unacked(after)
        while position <= last and len(runs) < at_most:
            run_end = self._run_end(position, last)
            runs.append((position, run_end))
            position = self.next_unacked(run_end)
        return runs

    # -- inside ------------------------------------------------------------------------------------

    def _run_end(self, first: Position, last: Position) -> Position:
        ledger_id, entry_id = first
        entries = self.acked.get(ledger_id)
        if entries is not None and entries.max() > entry_id:
            end = entries.next_set_bit(entry_id) - 1
        elif ledger_id == last.ledger_id:
            end = last.entry_id
        else:
            past = Position(ledger_id, _PAST_LEDGER_END)
            end = entry_id + self._ledgers.entries_between(first, past)
        return min(Position(ledger_id, end), last)

    def _exists(self, position: Position) -> bool:
        ledger_id, entry_id = position
        last = self._ledgers.last_confirmed
        if ledger_id == last[0]:
            return 0 <= entry_id <= last[1]
        if entry_id < 0 or ledger_id > last[0]:
            return False
        known = self._known.get(ledger_id, -1)
        if entry_id <= known:
            return True
        if self._ledgers.next_position(Position(ledger_id, entry_id - 1)) != position:
            return False
        self._known[ledger_id] = entry_id
        return True

    def _ack_part(self, position: Position, ack_set: Sequence[int], batch_size: int | None) -> int:
        """AND an ack set; returns the number of messages left, 0 if the entry is done."""
        before = self.masks.get(position)
        if len(ack_set) > MAX_ACK_SET_WORDS:
            return before.bit_count() if before is not None else batch_size or 1
        mask = mask_of_words(ack_set)
        if before is not None:
            mask &= before
        elif batch_size is not None and 0 < batch_size <= mask.bit_length():
            whole = (1 << batch_size) - 1
            mask &= whole
            if mask == whole:
                return batch_size
        if before is None and self.masks.weight + weight_of(mask) > BATCH_MASKS_WEIGHT_MAX:
            return mask.bit_count()  # as if it had not been acknowledged
        if mask and mask != before:
            self.masks.put(position, mask)
            if self._note_unsaved:
                self._unsaved_masks.add(position)
            self.changed = True
        return mask.bit_count()

    def _move_to(self, position: Position) -> None:
        self._raise_mark_delete(position)
        self.changed = True
        if self.acked:
            self._advance()

    def _advance(self) -> None:
        """Move mark-delete over the acknowledged entries that follow it, across ledgers."""
        ledger_id, entry_id = start = self.mark_delete
        while True:
            entries = self.acked.get(ledger_id)
            if entries is not None and entry_id + 1 in entries:
                end = _last_of_run(entries, entry_id + 1)
                entries.remove_range(entry_id + 1, end + 1)
                self.count -= end - entry_id
                entry_id = end
                if not entries:
                    del self.acked[ledger_id]
                    entries = None
            if len(self.acked) == (entries is not None):
                break  # nothing is acknowledged in another ledger
            following = self._ledgers.next_position(Position(ledger_id, entry_id))
            if following.ledger_id == ledger_id or not self.is_acked(following):
                break
            ledger_id, entry_id = following.ledger_id, following.entry_id - 1
        if (ledger_id, entry_id) != start and entry_id >= 0:
            self.mark_delete = Position(ledger_id, entry_id)
            self.changed = True
            if ledger_id != start[0]:
                self._forget_ledgers_below(ledger_id)
                self._forget_in_ledger(0)

    def _forget_ledgers_below(self, ledger_id: int) -> None:
        super()._forget_ledgers_below(ledger_id)
        for known in (self._known, self._unsaved):
            for gone in [i for i in known if i < ledger_id]:
                del known[gone]


def _last_of_run(entries: BitMap, first: int) -> int:
    """The last member of the run of consecutive members that begins at ``first``."""
    low, step = first, 1
    while low + step <= MAX_ENTRY_ID and entries.contains_range(low, low + step + 1):
        low += step
        step *= 2
    high = min(low + step, MAX_ENTRY_ID + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if entries.contains_range(low, middle + 1):
            low = middle
        else:
            high = middle
    return low
