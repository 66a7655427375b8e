"""Random life of a subscription of each type, beside a model that knows only what clients know.

The model hears of each delivery at the moment it is made, and checks that it may be:
* to a consumer with permits, a free socket and not too much unacknowledged;
* of an entry that nobody holds, with the messages and the redelivery count it must have;
* in order: of the partition (Exclusive, Failover), of the key (Key_Shared), what is delivered again
  before what is new (Shared).

After each step all counts agree, and nothing waits that could go out. In the end everybody heals,
and everything is delivered and acknowledged.

``LateTurnsMachine`` lives the same life while work of earlier steps is still queued.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.model.subscription_type import SubType, TypeSpec
from pulsark.dispatch.subscription import dispatcher, pending, replay_queue
from pulsark.errors import ClientError
from pulsark.wire.hashes import murmur3_32
from pulsark.wire.position import Position
from tests.support.fake_client import FakeClient
from tests.support.subscription_bench import Bench
from tests.support.ticking_clock import StepQueue

CONSUMER_LIMIT = 8
SUBSCRIPTION_LIMIT = 20
KEYS = "abcde"
SIZES = [*[1] * 12, 2, 3, 70]
PARTITION = 1
LOOK_AHEAD = "keySharedLookAheadMsgInReplayThresholdPerSubscription"
TURNS = [0, 0, 1, 2, 3, math.inf, math.inf]


@dataclass(slots=True)
class Message:
    """An entry as its producer knows it. ``left``: a bit for each message not acknowledged."""

    key: str
    left: int
    whole: int

    @property
    def unacked(self) -> int:
        return self.left.bit_count()


class Member:
    """A connected consumer as it knows itself."""

    def __init__(self, consumer: Consumer, connection: FakeClient) -> None:
        self.consumer = consumer
        self.connection = connection
        self.permits = 0
        self.held: set[Position] = set()
        self.blocked = False


def signed(word: int) -> int:
    """A word of an ack set as it is on the wire."""
    return word - 2**64 if word >= 2**63 else word


class SubscriptionMachine(RuleBasedStateMachine):
    """``spec`` and ``changed`` settings are a subclass's."""

    spec = TypeSpec(SubType.Shared)
    changed: dict[str, Any] = {}
    queue: StepQueue | None = None
    """The subscription's run queue, if it works by steps."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self.on_loop_error)
        self.failure: BaseException | None = None
        """What the model said to a delivery, or another error that its task or step swallowed."""
        self.bench: Bench = self.run(
            lambda: Bench(
                self.spec,
                durable=True,
                name=f"persistent://public/default/t-partition-{PARTITION}",
                acknowledgmentAtBatchIndexLevelEnabled=True,
                maxUnackedMessagesPerConsumer=CONSUMER_LIMIT,
                maxUnackedMessagesPerSubscription=SUBSCRIPTION_LIMIT,
                dispatcherMaxRoundRobinBatchSize=3,
                run_queue=self.queue,
                **self.changed,
            ),
            settle=False,
        )
        self.run(lambda: self.bench.subscription.use_type(self.spec))
        self.messages: dict[Position, Message] = {}
        self.members: dict[str, Member] = {}
        self.redeliveries: Counter[Position] = Counter()
        self.blocked = False
        self.names = 0
        self.next: Position | None = None
        """What the active consumer gets next (Exclusive, Failover); ``None``: the first unacked."""

    def teardown(self) -> None:
        self.heal()
        self.loop.close()

    # -- the loop --------------------------------------------------------------------------------

    def run(self, operation: Any, *, settle: bool = True) -> Any:
        """Do something on the loop, and go on until nothing is under way."""

        async def go() -> Any:
            result = operation()
            if asyncio.iscoroutine(result):
                result = await result
            if settle:
                await self.go_on()
            return result

        result = self.loop.run_until_complete(go())
        if self.failure is not None:
            raise self.failure
        return result

    async def go_on(self) -> None:
        """Go on until nothing is under way."""
        while self.failure is None:
            await asyncio.sleep(0)
            if self.is_settled():
                break

    def is_settled(self) -> bool:
        subscription = self.bench.subscription
        is_idle = not subscription.dispatcher._pump_scheduled and not self.bench.topic.run_queue
        return is_idle and subscription.dispatcher._read.task is None

    def on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failure = self.failure or context.get("exception") or AssertionError(context)

    # -- what the model knows --------------------------------------------------------------------

    @property
    def single(self) -> bool:
        return self.spec.sub_type in (SubType.Exclusive, SubType.Failover)

    @property
    def ordered_keys(self) -> bool:
        return self.spec.sub_type == SubType.Key_Shared and not self.spec.allow_out_of_order

    def unacked(self) -> list[Position]:
        return [p for p, message in self.messages.items() if message.left]

    def holder(self, position: Position) -> Member | None:
        return next((m for m in self.members.values() if position in m.held), None)

    def held_messages(self, member: Member) -> int:
        return sum(self.messages[p].unacked for p in member.held)

    def has_room(self, member: Member) -> bool:
        return member.permits > 0 and member.connection.writable and not member.blocked

    def active(self) -> Member | None:
        """Exclusive: the only one. Failover: by best priority, then name, then partition."""
        if not self.members:
            return None
        best = min(m.consumer.priority for m in self.members.values())
        names = sorted(n for n, m in self.members.items() if m.consumer.priority == best)
        return self.members[names[PARTITION % len(names)]]

    def release(self) -> None:
        """After something is not held any more: who was blocked may go on at half."""
        total = 0
        for member in self.members.values():
            held = self.held_messages(member)
            total += held
            member.blocked &= held > CONSUMER_LIMIT // 2
        self.blocked &= total > SUBSCRIPTION_LIMIT // 2

    def acked(self, position: Position, mask: int = 0) -> None:
        message = self.messages[position]
        message.left &= mask
        if not message.left:
            self.redeliveries.pop(position, None)
            for member in self.members.values():
                member.held.discard(position)

    # -- deliveries ------------------------------------------------------------------------------

    def delivered(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        try:
            self.check_delivery(consumer, entry, redeliveries, ack_set)
        except AssertionError as error:
            self.failure = self.failure or error
            raise

    def check_delivery(
        self, consumer: Consumer, entry: Entry, redeliveries: int, ack_set: list[int] | None
    ) -> None:
        member = self.members[consumer.name]
        position = entry.position
        message = self.messages[position]
        assert message.left, "it was acknowledged"
        assert member.permits > 0
        assert member.connection.writable
        self.check_limits(member)
        words = [] if ack_set is None else [word & (2**64 - 1) for word in ack_set]
        given = sum(word << 64 * index for index, word in enumerate(words))
        assert (given if ack_set is not None else message.whole) == message.left
        member.permits -= message.unacked
        if self.single:
            self.check_partition_order(member, position)
            return
        assert redeliveries == self.redeliveries[position]
        assert self.holder(position) is None, "two owners"
        if self.spec.sub_type == SubType.Key_Shared:
            self.check_key(member, position)
        else:
            assert position == min(p for p in self.unacked() if self.holder(p) is None)
        member.held.add(position)
        member.blocked = self.held_messages(member) >= CONSUMER_LIMIT
        total = sum(map(self.held_messages, self.members.values()))
        self.blocked = total >= SUBSCRIPTION_LIMIT

    def check_limits(self, member: Member) -> None:
        assert not member.blocked
        assert not self.blocked

    def check_partition_order(self, member: Member, position: Position) -> None:
        assert member is self.active()
        assert position == min(p for p in self.unacked() if self.next is None or p >= self.next)
        self.next = Position(position.ledger_id, position.entry_id + 1)

    def check_key(self, member: Member, position: Position) -> None:
        key = self.messages[position].key
        assert self.owner(key) is member
        if not self.ordered_keys:
            return
        for other, message in self.messages.items():
            if message.key == key and message.left:
                holder = self.holder(other)
                assert holder in (None, member), "a key at two consumers"
                assert holder is member or other >= position, "a later entry overtook"

    # -- steps -----------------------------------------------------------------------------------

    @initialize(permits=st.lists(st.sampled_from([0, 0, 1, 2, 6]), min_size=2, max_size=4))
    def begin(self, permits: list[int]) -> None:
        """Consumers that share, or one that is alone."""
        for each in permits[: 1 if self.spec.sub_type == SubType.Exclusive else None]:
            self.connect(0, "p", each)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8), data=st.data())
    def publish(self, keys: list[str], data: Any) -> None:
        sizes = [data.draw(st.sampled_from(SIZES)) for _ in keys]

        def go() -> None:
            entries = []
            for key, size in zip(keys, sizes, strict=True):
                entry = self.bench.topic.publish(size, key=key)
                self.messages[entry.position] = Message(key, 2**size - 1, 2**size - 1)
                entries.append(entry)
            first = entries[0]
            dispatcher = self.bench.subscription.dispatcher
            dispatcher.published(first.ledger_id, first.entry_id, entries)

        self.run(go)

    @precondition(lambda self: self.messages)
    @rule(what=st.integers(0, 9), data=st.data())
    def rarely(self, what: int, data: Any) -> None:
        """What would empty the stage if it happened as often as the rest."""
        if what == 0:
            self.roll_back(data.draw(st.sampled_from(sorted(self.messages))))
        elif what == 1:
            self.pass_over(data.draw(st.sampled_from(sorted(self.messages)[:4])))
        elif what < 6:
            self.bench.topic.cache.clear()
        else:
            self.bench.topic.ledger.roll_over()

    @precondition(lambda self: len(self.members) < 5)
    @rule(
        priority=st.sampled_from([0, 0, 0, 1]),
        letter=st.sampled_from("pqr"),
        permits=st.integers(0, 6),
    )
    def connect(self, priority: int, letter: str, permits: int) -> None:
        self.names += 1
        name = f"{letter}{self.names}"
        connection = FakeClient()
        connection.on_message = self.delivered
        before = self.active()

        def go() -> None:
            if self.spec.sub_type == SubType.Exclusive and self.members:
                with pytest.raises(ClientError):
                    self.bench.connect(name, priority, (), connection)
                return
            consumer = self.bench.connect(name, priority, self.free_range(), connection)
            self.members[name] = Member(consumer, connection)
            if self.active() is not before:
                self.next = None

        self.run(go)
        if permits and name in self.members:
            self.add_permits(name, permits)

    def free_range(self) -> tuple[tuple[int, int], ...]:
        """A fifth of the slots that no sticky consumer has."""
        if not self.spec.sticky:
            return ()
        taken = {m.consumer.key_ranges[0][0] for m in self.members.values()}
        start = next(s for s in range(0, 65535, 13108) if s not in taken)
        return ((start, min(start + 13107, 65535)),)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        before = self.active()
        del self.members[name]
        self.release()
        if self.active() is not before:
            self.next = None
        if not self.members:
            self.redeliveries.clear()
            self.blocked = False
        self.run(lambda: self.bench.leave(name))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), permits=st.sampled_from([1, 1, 2, 3, 9]), everybody=st.booleans())
    def flow(self, data: Any, permits: int, everybody: bool) -> None:
        names = sorted(self.members)
        for name in names if everybody else [data.draw(st.sampled_from(names))]:
            self.add_permits(name, permits)

    def add_permits(self, name: str, permits: int) -> None:
        self.members[name].permits += permits
        self.run(lambda: self.bench.flow(name, permits))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def socket(self, data: Any) -> None:
        """A socket fills up or drains."""
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        member.connection.writable = not member.connection.writable
        if member.connection.writable:
            self.run(lambda: self.bench.subscription.wake(member.consumer))

    @precondition(lambda self: self.members and self.messages)
    @rule(
        data=st.data(),
        mask=st.sampled_from([0, 0, 0, 1, 5, 2**69]),
        others=st.sampled_from([False, False, False, True]),
    )
    def ack(self, data: Any, mask: int, others: bool) -> None:
        """Some entries that the consumer holds, or any at all; whole ones or single messages."""
        name = data.draw(st.sampled_from(sorted(self.members)))
        mine = sorted(self.members[name].held)
        places = sorted(self.messages) if others or not mine else mine
        positions = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4))
        acks = []
        for position in positions:
            size = self.messages[position].whole.bit_length()
            words = None
            if mask and size > 1:
                kept = ~mask & self.messages[position].whole
                words = [signed(kept & (2**64 - 1)), signed(kept >> 64)]
                self.acked(position, kept)
            else:
                self.acked(position)
            acks.append((position, words, size if words else None))
        self.release()
        consumer = self.members[name].consumer
        self.run(lambda: self.bench.subscription.acks.individual(consumer, acks, None, 0))

    @precondition(lambda self: self.members and self.messages)
    @rule(data=st.data())
    def ack_through(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        through = data.draw(st.sampled_from(sorted(self.messages)))
        consumer = self.members[name].consumer

        def go() -> None:
            self.bench.subscription.acks.cumulative(consumer, through, None, None, 0)

        if not self.single:
            with pytest.raises(ClientError):
                self.run(go)
            return
        for position in self.messages:
            if position <= through:
                self.acked(position)
        self.run(go)

    @precondition(lambda self: self.members and self.messages)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: Any, everything: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members[name]
        places = sorted(member.held) or sorted(self.messages)
        positions = data.draw(st.lists(st.sampled_from(places), max_size=3))
        if self.single and member is self.active():
            self.next = None
        for position in sorted(member.held) if everything else set(positions):
            if position in member.held:
                member.held.remove(position)
                self.redeliveries[position] += 1
        self.release()
        member.blocked &= self.held_messages(member) >= CONSUMER_LIMIT
        wanted = None if everything else positions
        subscription = self.bench.subscription
        self.run(lambda: subscription.redeliver(member.consumer, wanted, None))

    def roll_back(self, target: Position) -> None:
        """The cursor is moved under connected consumers."""
        for position, message in self.messages.items():
            message.left = message.whole if position >= target else 0
        for member in self.members.values():
            member.held.clear()
        self.redeliveries.clear()
        self.release()
        self.next = None

        async def find(published_ms: int) -> Position:
            return target

        self.bench.topic.ledger.find_by_publish_time = find
        self.run(lambda: self.bench.subscription.seeking.rollback(0))

    def pass_over(self, through: Position) -> None:
        """Everything up to a position expires."""
        for position in self.messages:
            if position <= through:
                self.acked(position)
        self.release()
        self.run(lambda: self.bench.subscription.acks.pass_over(through))

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        subscription = self.bench.subscription
        assert subscription.backlog == len(self.unacked())
        consumers = [member.consumer for member in self.members.values()]
        for consumer, member in zip(consumers, self.members.values(), strict=True):
            assert consumer.permits == member.permits
            assert consumer.unacked == sum(consumer.pending.values())
        assert subscription.dispatcher.unacked.messages == sum(c.unacked for c in consumers)
        if self.is_settled():
            self.what_is_held_agrees()
            self.limits_agree()

    def what_is_held_agrees(self) -> None:
        for member in self.members.values():
            assert member.consumer.pending == {p: self.messages[p].unacked for p in member.held}
        dispatcher, type_ = self.bench.subscription.dispatcher, self.bench.subscription.type
        assert dispatcher._held == 0
        assert all(self.messages[p].left for p in dispatcher._redeliveries)
        if self.ordered_keys:
            held = {p for member in self.members.values() for p in member.held}
            assert set(type_._pending) == held
            assert sum(holding.entries for holding in type_._holdings.values()) == len(held)

    def limits_agree(self) -> None:
        assert self.bench.subscription.dispatcher.unacked.blocked == self.blocked
        for member in self.members.values():
            assert member.consumer.blocked == member.blocked

    @invariant()
    def nothing_waits_that_could_go_out(self) -> None:
        if self.blocked or not self.is_settled():
            return
        free = [p for p in self.unacked() if self.holder(p) is None]
        if self.single:
            active = self.active()
            if active is not None and self.has_room(active):
                assert not [p for p in self.unacked() if self.next is None or p >= self.next]
        elif self.spec.sub_type == SubType.Shared:
            assert not free or not any(map(self.has_room, self.members.values()))
        elif sum(map(self.bench.subscription.type.waits, free)) < self.look_ahead():
            for position in free:
                assert self.must_wait(position), position

    def look_ahead(self) -> int:
        return self.changed.get(LOOK_AHEAD, 10**9)

    def must_wait(self, position: Position) -> bool:
        """Whether an entry of a Key_Shared subscription cannot go out now."""
        key = self.messages[position].key
        owner = self.owner(key)
        if owner is None or not self.has_room(owner):
            return True
        if not self.ordered_keys:
            return False
        rivals = [p for p in self.unacked() if self.messages[p].key == key]
        holders = [self.holder(p) for p in rivals]
        elsewhere = any(h not in (None, owner) for h in holders)
        return elsewhere or any(p < position and self.holder(p) is None for p in rivals)

    def owner(self, key: str) -> Member | None:
        """The consumer that a key belongs to, by the selector, which has tests of its own."""
        selector = self.bench.subscription.type.selector
        consumer = selector.owner(selector.slot(murmur3_32(key)))
        return None if consumer is None else self.members[consumer.name]

    # -- the end -----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everybody takes and acknowledges; nothing is left."""
        if self.spec.sticky:
            while len(self.members) < 5:
                self.connect(0, "z", 0)
        elif not self.members:
            self.connect(0, "z", 0)
        for name, member in self.members.items():
            if not member.connection.writable:
                member.connection.writable = True
                self.run(lambda m=member: self.bench.subscription.wake(m.consumer))
            self.add_permits(name, max(10**6 - member.permits, 1))
        for _ in range(len(self.messages) + 1):
            self.counts_agree()
            self.nothing_waits_that_could_go_out()
            if not self.unacked():
                break
            for member in list(self.members.values()):
                mine = sorted(member.held)
                if self.single and member is self.active():
                    mine = self.unacked()
                acks = [(p, None, None) for p in mine]
                for position in mine:
                    self.acked(position)
                self.release()
                self.run(
                    lambda m=member, a=acks: self.bench.subscription.acks.individual(
                        m.consumer, a, None, 0
                    )
                )
        assert self.unacked() == []
        assert self.bench.subscription.type.replay_count == 0


class LateTurnsMachine(SubscriptionMachine):
    """Each step of the run queue takes a turn, and the next operation does not wait for all."""

    turns: Iterator[float] = itertools.repeat(math.inf)
    """Turns that pass after each operation, if there is as much to do."""
    cached = True
    """Whether entries come from the cache while they are new."""

    def __init__(self) -> None:
        self.queue = StepQueue()
        super().__init__()

    @initialize(
        turns=st.lists(st.sampled_from(TURNS), min_size=7, max_size=7), cached=st.booleans()
    )
    def set_pace(self, turns: list[float], cached: bool) -> None:
        self.turns, self.cached = itertools.cycle(turns), cached

    async def go_on(self) -> None:
        if not self.cached:
            self.bench.topic.cache.clear()
        left = next(self.turns)
        while left and self.failure is None and not self.is_settled():
            self.queue.turn()
            await asyncio.sleep(0)
            left -= 1

    @precondition(lambda self: self.unacked())
    @rule(data=st.data())
    def skip(self, data: Any) -> None:
        self.pass_over(data.draw(st.sampled_from(self.unacked())))

    def check_limits(self, member: Member) -> None:
        """Who is blocked is known when all is released that was acknowledged."""

    def limits_agree(self) -> None:
        """What was released in which turn decides between half a limit and the whole one."""
        unacked = self.bench.subscription.dispatcher.unacked
        self.blocked = unacked.blocked
        assert _may_be(unacked.blocked, unacked.messages, SUBSCRIPTION_LIMIT)
        for member in self.members.values():
            member.blocked = member.consumer.blocked
            assert _may_be(member.blocked, member.consumer.unacked, CONSUMER_LIMIT)

    def heal(self) -> None:
        self.turns = itertools.repeat(math.inf)
        self.run(lambda: None)
        super().heal()


def _may_be(blocked: bool, unacked: int, limit: int) -> bool:
    return unacked > limit // 2 if blocked else unacked < limit


SETTINGS = settings(max_examples=settings().max_examples // 2, stateful_step_count=40)
LATE_SETTINGS = settings(SETTINGS, max_examples=settings().max_examples // 3)
SMALL_LOOK_AHEAD = {LOOK_AHEAD: 3}
KINDS: dict[str, tuple[TypeSpec, dict[str, Any]]] = {
    "exclusive": (TypeSpec(SubType.Exclusive), {}),
    "failover": (TypeSpec(SubType.Failover), {}),
    "shared": (TypeSpec(SubType.Shared), {}),
    "ring": (TypeSpec(SubType.Key_Shared), {}),
    "ranges": (
        TypeSpec(SubType.Key_Shared),
        {"subscriptionKeySharedUseConsistentHashing": False, **SMALL_LOOK_AHEAD},
    ),
    "sticky": (TypeSpec(SubType.Key_Shared, sticky=True), SMALL_LOOK_AHEAD),
    "any order": (TypeSpec(SubType.Key_Shared, allow_out_of_order=True), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_the_promises_of_the_type_are_kept(kind: str) -> None:
    spec, changed = KINDS[kind]
    machine = type("Machine", (SubscriptionMachine,), {"spec": spec, "changed": changed})
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_promises_are_kept_while_work_waits_for_later_turns(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "READ_ENTRIES", 2)
    monkeypatch.setattr(pending, "READ_ENTRIES", 1)
    monkeypatch.setattr(replay_queue, "SLOTS_PLANNED_AT_ONCE_MAX", 1)
    spec, changed = KINDS[kind]
    changed = {**changed, LOOK_AHEAD: 1}
    machine = type("Machine", (LateTurnsMachine,), {"spec": spec, "changed": changed})
    run_state_machine_as_test(machine, settings=LATE_SETTINGS)
