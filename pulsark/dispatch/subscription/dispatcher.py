"""The dispatcher of a subscription: from the topic, through the type's decisions, to the sockets.

Its pump runs on the event loop, is called whenever something changed that may let an entry
go out (a publish, permits, an acknowledgement, a socket that drained), and never blocks: what
is not in memory is read from storage by a task that calls the pump again.

Invariants:
* every entry above the cursor is in exactly one place: pending at a consumer, waiting to be
  delivered again (both known to the type), held back until its time comes, or at or after the
  read position;
* at most one read from storage is under way, and a rewind makes its result void.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.model.erased_entries import ack_of
from pulsark.dispatch.model.subscription_stats import Reads
from pulsark.dispatch.subscription.delayed_entries import HeldBack
from pulsark.dispatch.subscription.delayed_tracker import NEVER_MS
from pulsark.dispatch.subscription.deliveries import Deliveries
from pulsark.dispatch.subscription.read_buffer import ReadBuffer
from pulsark.dispatch.subscription.reader import READ_ENTRIES, Reader
from pulsark.dispatch.subscription.storage_read import StorageRead
from pulsark.dispatch.subscription.throttle import DispatchThrottle
from pulsark.dispatch.subscription.unacked import Unacked
from pulsark.storage.position_set import PositionSet
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.members import Members
    from pulsark.dispatch.model.subscription_stats import ExcessKind, Level
    from pulsark.dispatch.policies.policies import DispatchRate
    from pulsark.dispatch.subscription.dispatch_limit import DispatchLimit
    from pulsark.dispatch.subscription.stored_topic import StoredTopic
    from pulsark.storage.cursor.cursor import Cursor

ROUNDS_PER_TURN = 4
"""Reads of fewer than ``READ_ENTRIES`` entries that a subscription may make in a row."""
NOTHING = PositionSet()


class Dispatcher:
    """Sends the entries of one subscription to its consumers."""

    def __init__(self, topic: StoredTopic, cursor: Cursor, members: Members) -> None:
        self._topic = topic
        self._cursor = cursor
        self._members = members
        self.unacked = Unacked(self)
        self._deliveries = Deliveries(members, self.unacked)
        self._deliver = self._deliveries.deliver
        self._throttle: DispatchThrottle | None = None
        """Only if there is, or was, a dispatch rate."""
        self.reader = Reader(topic, members)
        self.held_back = HeldBack()
        self._redeliveries: dict[Position, int] = {}
        """How often clients asked for an entry again."""
        self._buffer = ReadBuffer(topic.cache_budget)
        self._read = StorageRead(self, self.pump)
        self._held = 0
        """``pause`` minus ``go_on``."""
        self._era = 0
        """Rewinds so far."""
        self._pump_scheduled = False

    def __str__(self) -> str:
        return f"{self._topic.name}: subscription {self._cursor.name}"

    # -- from outside ---

    def schedule_pump(self) -> None:
        """Run the pump once, when its turn comes among those of other subscriptions."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._topic.run_queue.call(self._scheduled_pump)

    def wake(self, consumer: Consumer) -> None:
        """A consumer may have room again."""
        self._members.type.wake(consumer)
        self.schedule_pump()

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

        Acknowledged ones are forgotten instead. Nothing goes out before all of them wait: their
        order is kept.
        """
        self.pause()
        self._topic.run_queue.take_steps(self._give_back(positions, counted))

    def _give_back(self, positions: Collection[Position], counted: bool) -> Iterator[None]:
        era = self._era
        give_back, redeliveries = self._members.type.give_back, self._redeliveries
        state = self._cursor.state
        try:
            for number, position in enumerate(positions, 1):
                if state.is_acked(position):  # since it was sent: a skip releases it in turns
                    self.forget(position)
                else:
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

    def take_steps(self, steps: Iterator[None]) -> None:
        """Run steps in turns of the event loop. A rewind drops those that are left."""
        self._topic.run_queue.take_steps(self._until_rewind(steps))

    def _until_rewind(self, steps: Iterator[None]) -> Iterator[None]:
        era = self._era
        for _ in steps:
            yield
            if self._era != era:
                return

    def forget(self, position: Position) -> None:
        """An entry is acknowledged as a whole."""
        self._members.type.forget(position)
        if self._redeliveries:
            self._redeliveries.pop(position, None)
        if self._buffer.aside:
            self._buffer.drop(position)

    def set_rates(self, own: DispatchRate, shared: Sequence[DispatchLimit]) -> None:
        """Keep to dispatch rates from now on: one of its own, and those it shares with others."""
        if self._throttle is None:
            if not (own.limits or shared):
                return
            self._throttle = DispatchThrottle(self, self._topic, self._deliveries.deliver)
        throttle = self._throttle
        throttle.set_rates(own, shared)
        self._deliver = throttle.deliver if throttle.is_on else self._deliveries.deliver

    @property
    def throttled(self) -> Mapping[tuple[ExcessKind, Level], int]:
        """How often a rate stopped it, by what there was too much of, and by whose rate."""
        return {} if self._throttle is None else self._throttle.events

    @property
    def reads(self) -> Reads:
        """What it waits for at this moment."""
        if self._read.task is not None:
            ahead = self._read.position == self.reader.position
            return Reads.NEW_ENTRIES if ahead else Reads.WAITING_ENTRIES
        at_end = self.reader.position > self._topic.ledger.last_confirmed
        idle = at_end and not self._held and not self.unacked.blocked
        return Reads.FUTURE_ENTRIES if idle and self._members.type.room() else Reads.NOTHING

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
        if self.reader.pass_over(through):
            self._buffer.pass_over(through)
        self.take_steps(self._forget_through(through))

    def _forget_through(self, through: Position) -> Iterator[None]:
        waiting = self._members.type.held_up()
        for number, position in enumerate([*self._redeliveries, *self._buffer.aside, *waiting], 1):
            if number % READ_ENTRIES == 0:
                yield
            if position <= through:
                self.forget(position)
        self.schedule_pump()  # there is room to look ahead

    def rewind(self) -> None:
        """Begin again behind the cursor. Results of reads under way become void."""
        self._read.cancel()
        self._era += 1
        self._buffer.clear()
        self.held_back.clear()
        self._members.type.clear()
        self.reader.rewind(self._cursor.state.mark_delete)

    def forget_content(self) -> None:
        """What was read is read again: it may be different now."""
        self._buffer.clear()
        self._read.cancel()
        self.schedule_pump()

    def forget_redeliveries(self) -> None:
        """Count redeliveries from zero again."""
        self._redeliveries.clear()

    def close(self) -> None:
        """Stop for good."""
        self.pause()
        self._buffer.clear()
        self._read.cancel()
        if self._throttle is not None:
            self._throttle.close()

    # -- the pump ---

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self.pump()

    def published(self, ledger_id: int, first_entry_id: int, entries: list[Entry]) -> None:
        """The topic has new entries, its last ones: a subscription at its end need not read."""
        type_ = self._members.type
        if (
            self.reader.position != (ledger_id, first_entry_id)
            or len(entries) > READ_ENTRIES
            or self._read.task is not None
            or self._held
            or self.unacked.blocked
            or type_.next_replay() is not None
            or self.held_back.due
        ):
            self.pump()
        elif type_.room():
            self._dispatch(entries)

    def pump(self) -> None:
        """Send what can be sent now."""
        self._plan()
        if self._read.task is not None or self._held:
            return
        type_, reader = self._members.type, self.reader
        left = READ_ENTRIES
        for _ in range(ROUNDS_PER_TURN):
            if self.unacked.blocked or not self._replay_waiting():
                return
            room = type_.room()
            if not room:
                return
            if self.held_back.due.ledgers:
                self.replay(self.held_back.due.pop_lowest(min(room, READ_ENTRIES)))
                continue
            entries: list[Entry] | None = self._buffer.ahead
            if not entries:
                early = self._topic.delayed.tracker.positions if type_.tracks_pending else NOTHING
                reader.skip(self._cursor.state, self.held_back, early)
                entries = reader.cached(READ_ENTRIES if self.held_back else min(room, READ_ENTRIES))
                if entries is None:
                    if not reader.skip_gap():
                        self._read.start(reader.position, reader.stored, self._read_ahead)
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

    def _plan(self) -> None:
        """Plan some of what moved between consumers; the rest in later turns."""
        plan = self._members.type.plan
        if plan is not None and plan():
            self.schedule_pump()

    def _dispatch(self, entries: list[Entry]) -> bool:
        """Send new entries in order; ``False`` when a consumer has to make room first."""
        type_, unacked, buffer = self._members.type, self.unacked, self._buffer
        choose = type_.choose
        unwanted = type_.unwanted
        deliver = self._deliver
        state = self._cursor.state
        self._deliveries.now_ms = self._topic.clock.now_ms()
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
            elif type_.put_aside(entry):
                buffer.keep(entry)
            else:
                self.reader.position = entry.position
                if entries is buffer.ahead:
                    buffer.ahead = entries[index:]
                elif buffer.ahead:
                    buffer.drop_ahead()
                return False
        last = entries[-1]
        self.reader.position = Position(last.ledger_id, last.entry_id + 1)
        if buffer.ahead:
            buffer.drop_ahead()
        return True

    def _replay_waiting(  # noqa: C901 - the hot path has no calls to spare
        self,
    ) -> bool:
        """Send what waits and can go out; ``False`` unless that is done."""
        type_, buffer = self._members.type, self._buffer
        if type_.next_replay() is None:
            return True
        self._deliveries.now_ms = self._topic.clock.now_ms()
        state = self._cursor.state
        for _ in range(READ_ENTRIES):
            position = type_.next_replay()
            if position is None:
                return True
            if state.is_acked(position):
                self.forget(position)
                continue
            entry = buffer.aside.get(position) or self._topic.entries.cached_entry(position)
            if entry is None:
                use = partial(self._read_waiting, position)
                self._read.start(position, partial(self.reader.stored_at, position), use)
                return False
            if entry.marker:  # erased since it was put aside
                self._cursor.ack([ack_of(entry)], None)
                if state.is_acked(position):
                    self.forget(position)
                    continue
            if entry.deliver_at and entry.deliver_at > self._cutoff_ms():
                type_.forget(position)
                buffer.drop(position)
                self._hold_back(entry)
                continue
            consumer = type_.choose(entry)
            if consumer is not None:
                if buffer.aside:
                    buffer.drop(position)
                redeliveries = self._redeliveries.get(position, 0)
                ack_set = state.ack_set_of(position)
                self._deliver(consumer, entry, redeliveries, ack_set)
                if self.unacked.blocked:
                    return False
            elif not type_.put_aside(entry):
                return False
        self.schedule_pump()
        return False

    # -- entries that are too early ---

    def _cutoff_ms(self) -> int:
        """Entries with a later deliver-at time are held back; only some types do that."""
        if not self._members.type.tracks_pending:
            return NEVER_MS
        return self._topic.delayed.cutoff_ms()

    def _hold_back(self, entry: Entry) -> None:
        self.held_back.waiting.add(entry.position)
        self._topic.delayed.add(entry.deliver_at, entry.position)

    # -- what was read from storage ---

    def _read_ahead(self, entries: list[Entry]) -> None:
        if entries:
            position = self.reader.position
            if entries[0].position < position:  # a skip passed over some meanwhile
                entries = [entry for entry in entries if entry.position >= position]
            self._buffer.read_ahead(entries)
            self.pump()

    def _read_waiting(self, position: Position, entries: list[Entry]) -> None:
        """A waiting entry was read, and those behind it, some of which wait as well."""
        if not entries or entries[0].position != position:
            self.forget(position)  # trimmed since it was delivered
        waits = self._members.type.waits
        for entry in reversed(entries):  # should not all fit, the first one has to
            if waits(entry.position):
                self._buffer.keep(entry)
        self.pump()
