"""The pump of a subscription: from the topic, through the type's decisions, to the sockets.

The pump runs on the event loop, is called whenever something changed that may let an entry
go out (a publish, permits, an acknowledgement, a socket that drained), and never blocks: what
is not in memory is read from storage by a task that calls the pump again.

Invariants:
* every entry above the cursor is in exactly one place: pending at a consumer, waiting to be
  delivered again (both known to the type), held back until its time comes, or at or after the
  read position;
* at most one read from storage is under way, and a rewind makes its result void.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.model.erased_entries import ack_of
from pulsark.dispatch.subscription.delayed_entries import HeldBack
from pulsark.dispatch.subscription.delayed_tracker import NEVER_MS
from pulsark.errors import CorruptEntryError, trace_of
from pulsark.limits import PUT_ASIDE_BYTES_MAX
from pulsark.storage.position_set import PositionSet
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator

    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.subscription.stored_topic import CompactedSource, EntrySource
    from pulsark.dispatch.subscription.subscription import Subscription

log = logging.getLogger(__name__)

READ_ENTRIES = 500
"""So many are looked at in a row, some milliseconds of the event loop; then others have a turn."""
READ_BYTES = 4 << 20
ROUNDS_PER_TURN = 4
"""Reads of fewer entries that a subscription may make in a row."""
READ_RETRY_SECONDS = 1.0
ABOUT_DAMAGE = (
    "`pulsark tables repair TOPIC` says what of its table is lost, `pulsark doctor --data-dir DIR` "
    "what of a journal"
)
NOTHING = PositionSet()


class Dispatcher:
    """Sends the entries of one subscription to its consumers."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._topic = subscription.topic
        self._cursor = subscription.cursor
        self._unacked = subscription.unacked
        self.read_position = Position(-1, 0)
        self.held_back = HeldBack()
        self._redeliveries: dict[Position, int] = {}
        self._budget = subscription.topic.cache_budget
        self._ahead_bytes = 0
        """Of what was read, until all of it is dispatched."""
        self._ahead: list[Entry] = []
        """Entries from the read position on that were read from storage."""
        self._aside: dict[Position, Entry] = {}
        """Waiting entries whose content is at hand; those not in here have to be fetched."""
        self._aside_bytes = 0
        self._reading: asyncio.Task[None] | None = None
        self._complaint = ""
        """Why nothing could be read last, which is said once."""
        self._held = 0
        self._era = 0
        """Rewinds so far."""
        self._pump_scheduled = False

    def __str__(self) -> str:
        return f"{self._topic.name}, subscription {self._subscription.name}"

    # -- from outside ---

    def schedule_pump(self) -> None:
        """Run the pump once, when its turn comes among those of other subscriptions."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._topic.run_queue.call(self._scheduled_pump)

    def pause(self) -> None:
        """Dispatch nothing until ``go_on`` was called as often as this."""
        self._held += 1

    def go_on(self) -> None:
        """Undo one ``pause``."""
        self._held -= 1
        self.schedule_pump()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """While this context is open nothing is dispatched."""
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def replay(self, positions: Collection[Position], *, counted: bool = False) -> None:
        """Deliver entries that are not pending (any more); ``counted``: a client asked for it.

        Nothing goes out before all of them wait: their order is kept.
        """
        self.pause()
        self._topic.run_queue.take_steps(self._give_back(positions, counted))

    def _give_back(self, positions: Collection[Position], counted: bool) -> Iterator[None]:
        era = self._era
        give_back, redeliveries = self._subscription.type.give_back, self._redeliveries
        try:
            for number, position in enumerate(positions, 1):
                if counted:
                    redeliveries[position] = redeliveries.get(position, 0) + 1
                give_back(position)
                if number % READ_ENTRIES == 0 and number < len(positions):
                    yield
                    if self._era != era:
                        break  # a rewind: they are read again
        finally:
            self._held -= 1
        if len(positions) > READ_ENTRIES:
            self.schedule_pump()

    def forget(self, position: Position) -> None:
        """An entry is acknowledged as a whole."""
        self._subscription.type.forget(position)
        if self._redeliveries:
            self._redeliveries.pop(position, None)
        if self._aside:
            self._drop(position)

    def release(self, positions: PositionSet) -> None:
        """Entries are due, of which some may be held back here."""
        if self.held_back.release(positions):
            self.schedule_pump()

    def release_all(self) -> None:
        """Nothing needs to be held back any more."""
        self.held_back.release_all()
        self.schedule_pump()

    def pass_over(self, through: Position) -> None:
        """All entries up to there are acknowledged, without a word for each: go on behind."""
        for position in {*self._redeliveries, *self._aside}:
            if position <= through:
                self.forget(position)
        if self.read_position <= through:
            self.read_position = self._topic.ledger.next_position(through)
            self._ahead = [entry for entry in self._ahead if entry.position > through]

    def rewind(self) -> None:
        """Begin again behind the cursor. Results of reads under way become void."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._era += 1
        self._drop_all()
        self.held_back.clear()
        self._subscription.type.clear()
        mark_delete = self._cursor.state.mark_delete
        ledger, view = self._topic.ledger, self._compacted_view
        if view is not None and mark_delete < view.horizon:
            self.read_position = Position(mark_delete.ledger_id, mark_delete.entry_id + 1)
        else:
            self.read_position = ledger.valid_position_at_or_after(
                ledger.next_position(mark_delete)
            )

    @property
    def _compacted_view(self) -> CompactedSource | None:
        """What the active consumer reads, if it reads what compaction left."""
        active = self._subscription.type.active
        return (
            self._topic.entries.compacted if active is not None and active.read_compacted else None
        )

    @property
    def _source(self) -> EntrySource:
        if self._topic.entries.compacted is None:
            return self._topic.entries
        return self._compacted_view or self._topic.entries

    def forget_content(self) -> None:
        """What was read is read again: it may be different now."""
        self._drop_all()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self.schedule_pump()

    def forget_redeliveries(self) -> None:
        """Count redeliveries from zero again."""
        self._redeliveries.clear()

    def close(self) -> None:
        """Stop for good."""
        self.pause()
        self._drop_all()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    # -- the pump ---

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def published(self, ledger_id: int, first_entry_id: int, entries: list[Entry]) -> None:
        """The topic has new entries, its last ones: a subscription at its end need not read."""
        subscription, unacked = self._subscription, self._unacked
        if (
            self.read_position != (ledger_id, first_entry_id)
            or len(entries) > READ_ENTRIES
            or self._reading is not None
            or self._held
            or unacked.blocked
            or subscription.type.next_replay() is not None
            or self.held_back.due
        ):
            self.pump()
        elif subscription.type.room():
            self._dispatch(entries)

    def pump(self) -> None:
        """Send what can be sent now."""
        if self._reading is not None or self._held:
            return
        type_, unacked = self._subscription.type, self._unacked
        left = READ_ENTRIES
        for _ in range(ROUNDS_PER_TURN):
            if unacked.blocked or not self._replay_waiting():
                return
            room = type_.room()
            if not room:
                return
            if self.held_back.due.ledgers:
                self.replay(self.held_back.due.pop_lowest(min(room, READ_ENTRIES)))
                continue
            entries: list[Entry] | None = self._ahead
            if not entries:
                self._skip()
                room = READ_ENTRIES if self.held_back else min(room, READ_ENTRIES)
                entries = self._source.read_cached(self.read_position, room, READ_BYTES)
                if entries is None:
                    if not self._skip_gap():
                        self._read(self._fill_ahead())
                        return
                    continue
                if not entries:
                    return
            left -= len(entries)
            if not self._dispatch(entries):
                return
            if left <= 0:
                break
        self.schedule_pump()

    def _dispatch(self, entries: list[Entry]) -> bool:
        """Send new entries in order; ``False`` when somebody has to make room first."""
        subscription, unacked = self._subscription, self._unacked
        choose = subscription.type.choose
        unwanted = subscription.type.unwanted
        deliver = subscription.deliver
        state = self._cursor.state
        subscription.dispatching_ms = self._topic.clock.now_ms()
        first = entries[0]
        holes = state.acks_from(first.ledger_id, first.entry_id)
        for index, entry in enumerate(entries):
            if entry.marker:
                self._cursor.ack([ack_of(entry)], None)
                holes = True
            if unwanted is not None and unwanted(entry):
                continue
            ack_set = None
            if holes:
                position = entry.position
                if state.is_acked(position):
                    continue
                ack_set = state.ack_set_of(position)
            if entry.deliver_at and entry.deliver_at > self._cutoff_ms():
                self._hold_back(entry)
                continue
            consumer = None if unacked.blocked else choose(entry)
            if consumer is not None:
                deliver(consumer, entry, 0, ack_set)
            elif subscription.type.put_aside(entry):
                self._keep(entry)
            else:
                self.read_position = entry.position
                if entries is self._ahead:
                    self._ahead = entries[index:]
                else:
                    self._drop_ahead()
                return False
        last = entries[-1]
        self.read_position = Position(last.ledger_id, last.entry_id + 1)
        self._drop_ahead()
        return True

    def _replay_waiting(  # noqa: C901 - the hot path has no calls to spare
        self,
    ) -> bool:
        """Send what waits and can go out; ``False`` unless that is done."""
        subscription = self._subscription
        type_ = subscription.type
        if type_.next_replay() is None:
            return True
        subscription.dispatching_ms = self._topic.clock.now_ms()
        state = self._cursor.state
        for _ in range(READ_ENTRIES):
            position = type_.next_replay()
            if position is None:
                return True
            if state.is_acked(position):
                self.forget(position)
                continue
            entry = self._aside.get(position) or self._topic.entries.cached_entry(position)
            if entry is None:
                self._read(self._fill_aside(position))
                return False
            if entry.marker:  # erased since it was put aside
                self._cursor.ack([ack_of(entry)], None)
                if state.is_acked(position):
                    self.forget(position)
                    continue
            if entry.deliver_at and entry.deliver_at > self._cutoff_ms():
                type_.forget(position)
                self._drop(position)
                self._hold_back(entry)
                continue
            consumer = type_.choose(entry)
            if consumer is not None:
                if self._aside:
                    self._drop(position)
                redeliveries = self._redeliveries.get(position, 0)
                subscription.deliver(consumer, entry, redeliveries, state.ack_set_of(position))
                if self._unacked.blocked:
                    return False
            elif not type_.put_aside(entry):
                return False
        self.schedule_pump()
        return False

    # -- entries that are too early ---

    def _cutoff_ms(self) -> int:
        """Entries with a later deliver-at time are held back; only some types do that."""
        if not self._subscription.type.tracks_pending:
            return NEVER_MS
        return self._topic.delayed.cutoff_ms()

    def _hold_back(self, entry: Entry) -> None:
        self.held_back.waiting.add(entry.position)
        self._topic.delayed.add(entry.deliver_at, entry.position)

    def _skip(self) -> None:
        """Move the read position over entries that need not be read."""
        state = self._cursor.state
        owns = self._subscription.type.tracks_pending
        early = self._topic.delayed.tracker.positions if owns else NOTHING
        if not (state.acked or early.ledgers) or self._compacted_view is not None:
            return
        while True:
            place = self.held_back.skip(self.read_position, state, early)
            if place == self.read_position:
                return
            self.read_position = self._topic.ledger.valid_position_at_or_after(place)

    # -- entries at hand ---

    def _keep(self, entry: Entry) -> None:
        """Keep the content of an entry that waits, for as long as there is room."""
        position = entry.position
        if position in self._aside:
            return
        size = len(entry.data)
        if self._aside_bytes + size > PUT_ASIDE_BYTES_MAX or not self._budget.has_room(size):
            self._drop_aside()
        self._aside_bytes += size
        self._budget.at_hand(size)
        self._aside[position] = entry

    def _drop(self, position: Position) -> None:
        entry = self._aside.pop(position, None)
        if entry is not None:
            self._aside_bytes -= len(entry.data)
            self._budget.at_hand(-len(entry.data))

    def _drop_aside(self) -> None:
        self._aside.clear()
        self._budget.at_hand(-self._aside_bytes)
        self._aside_bytes = 0

    def _drop_ahead(self) -> None:
        self._ahead = []
        if self._ahead_bytes:
            self._budget.at_hand(-self._ahead_bytes)
            self._ahead_bytes = 0

    def _drop_all(self) -> None:
        self._drop_ahead()
        self._drop_aside()

    # -- reads from storage ---

    def _skip_gap(self) -> bool:
        """Move the read position to an entry that exists; whether that changed it."""
        position = self._source.valid_position_at_or_after(self.read_position)
        if position == self.read_position:
            return False
        self.read_position = position
        return True

    def _read(self, work: Coroutine[Any, Any, None]) -> None:
        self._reading = asyncio.get_running_loop().create_task(work)

    async def _fill_ahead(self) -> None:
        try:
            room = self._budget.read_bytes(READ_BYTES)
            self._ahead = await self._source.read(self.read_position, READ_ENTRIES, room)
        except Exception as error:  # noqa: BLE001 - logged; the read is tried again
            self._read_failed(error)
            return
        self._reading = None
        self._complaint = ""
        if self._ahead:
            size = sum(len(entry.data) for entry in self._ahead)
            self._budget.at_hand(size - self._ahead_bytes)
            self._ahead_bytes = size
            self.pump()

    async def _fill_aside(self, position: Position) -> None:
        """Fetch a waiting entry, and those behind it that wait as well."""
        try:
            room = self._budget.read_bytes(READ_BYTES)
            entries = await self._topic.entries.read(position, READ_ENTRIES, room)
        except Exception as error:  # noqa: BLE001 - logged; the read is tried again
            self._read_failed(error)
            return
        self._reading = None
        self._complaint = ""
        if not entries or entries[0].position != position:
            self.forget(position)  # trimmed away since it was delivered
        waits = self._subscription.type.waits
        for entry in reversed(entries):  # should not all fit, the first one has to
            if waits(entry.position):
                self._keep(entry)
        self.pump()

    def _read_failed(self, error: Exception) -> None:
        """Whatever it was: without another attempt the subscription would stand still for ever."""
        complaint = f"{type(error).__name__}: {error}"
        if isinstance(error, CorruptEntryError):
            complaint += f". {ABOUT_DAMAGE}"
        if complaint != self._complaint:
            self._complaint = complaint
            log.warning(
                "%s: subscription %s cannot read from %s on; trying again every %g s: %s",
                self._topic.name,
                self._subscription.name,
                self.read_position,
                READ_RETRY_SECONDS,
                complaint,
                exc_info=trace_of(error),
            )
        self._read(self._retry_later())

    async def _retry_later(self) -> None:
        await asyncio.sleep(READ_RETRY_SECONDS)
        self._reading = None
        self.pump()
