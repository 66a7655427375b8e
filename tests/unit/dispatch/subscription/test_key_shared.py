"""Scripted scenarios for Key_Shared: who takes the next entry, and what waits for whom."""

from __future__ import annotations

from itertools import count

import pytest
from pyroaring import BitMap

from pulsark.config.settings import Settings
from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.subscription import replay_queue
from pulsark.dispatch.subscription.hash_ranges import RANGE_SIZE, AutoSplitRanges, StickyRanges
from pulsark.dispatch.subscription.hash_ring import HashRing
from pulsark.dispatch.subscription.key_shared import ConsumerSelector, KeyShared
from pulsark.dispatch.subscription.replay_queue import WaitingSlots
from pulsark.dispatch.subscription.subscription_types import look_ahead
from pulsark.limits import SLOTS_PLANNED_AT_ONCE_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.hashes import murmur3_32
from pulsark.wire.position import Position
from tests.support.fake_consumers import FakeConsumer, take


class Slots:
    """A selector in which the key is the slot, and a table says whose each slot is."""

    def __init__(self) -> None:
        self.table: dict[int, FakeConsumer] = {}

    def slot(self, key_hash: int) -> int:
        return key_hash

    def owner(self, slot: int):
        return self.table.get(slot)

    def add(self, consumer) -> BitMap:
        return BitMap()

    def remove(self, consumer) -> BitMap:
        moved = BitMap(slot for slot, c in self.table.items() if c is consumer)
        self.table = {slot: c for slot, c in self.table.items() if c is not consumer}
        return moved

    def ranges(self):
        return []


class Scene:
    """A Key_Shared type whose slots are given to consumers by hand."""

    def __init__(self, limit: int = 100, *, ordered: bool = True) -> None:
        self.slots = Slots()
        self.type = KeyShared(self.slots, lambda consumers: limit, ordered=ordered)
        self._ids = count()

    def connect(self, name: str, *slots: int, permits: int = 99) -> FakeConsumer:
        consumer = FakeConsumer(name, permits=permits)
        self.type.add(consumer)
        self.give(consumer, *slots)
        return consumer

    def give(self, consumer: FakeConsumer, *slots: int) -> None:
        self.slots.table.update(dict.fromkeys(slots, consumer))
        self.type._slots_moved(BitMap(slots))
        while self.type.plan():
            pass

    def leave(self, consumer: FakeConsumer, *pending: Entry) -> None:
        self.type.remove(consumer)
        self.type.plan()
        for entry in pending:
            self.type.give_back(entry.position)

    def entry(self, slot: int) -> Entry:
        entry = Entry(b"", 1, False, False, ledger_id=1, entry_id=next(self._ids))
        entry._key_hash = slot
        return entry

    def replays(self, *entries: Entry) -> list[tuple[int, str]]:
        """Deliver what can be delivered again: entry ids and consumers."""
        known = {e.position: e for e in entries}
        sent = []
        while (position := self.type.next_replay()) is not None:
            (name,) = take(self.type, known[position])
            if name == "-":
                assert self.type.put_aside(known[position])
            else:
                sent.append((position.entry_id, name))
        return sent


@pytest.mark.feature("F33")
def test_a_key_goes_to_its_owner_also_when_it_is_delivered_again() -> None:
    scene = Scene()
    scene.connect("a", 1)
    scene.connect("b", 2)
    first, second, third = (scene.entry(slot) for slot in (1, 2, 1))
    assert take(scene.type, first, second, third) == ["a", "b", "a"]
    for entry in (third, first):
        scene.type.give_back(entry.position)
    assert scene.replays(first, third) == [(0, "a"), (2, "a")]


@pytest.mark.feature("F33")
def test_a_slot_that_moved_waits_until_its_old_owner_has_acknowledged_all_of_it() -> None:
    scene = Scene()
    a = scene.connect("a", 1, 2)
    one, two, other = (scene.entry(slot) for slot in (1, 1, 2))
    assert take(scene.type, one, two, other) == ["a", "a", "a"]
    b = scene.connect("b", 1)
    three, four, fresh = (scene.entry(slot) for slot in (1, 1, 3))
    scene.give(b, 3)
    assert take(scene.type, three) == ["-"]
    assert scene.type.put_aside(three)
    assert take(scene.type, fresh) == ["b"]  # a slot that nobody holds is free at once
    scene.type.forget(one.position)
    assert scene.type.next_replay() is None
    assert [slot for slot, _ in scene.type.draining()[a]] == [1]
    scene.type.forget(two.position)
    assert scene.replays(three, four) == [(three.entry_id, "b")]
    assert take(scene.type, four) == ["b"]
    assert scene.type.drained == {a: 1, b: 0}
    assert scene.type.draining() == {}


def test_a_slot_that_comes_back_to_its_holder_goes_on_at_once() -> None:
    scene = Scene()
    a = scene.connect("a", 1)
    entries = [scene.entry(1) for _ in range(3)]
    take(scene.type, entries[0])
    b = scene.connect("b", 1)
    assert take(scene.type, entries[1]) == ["-"]
    assert scene.type.put_aside(entries[1])
    scene.leave(b)
    scene.give(a, 1)
    assert scene.replays(*entries) == [(1, "a")]
    assert take(scene.type, entries[2]) == ["a"]


def test_what_a_leaver_held_goes_to_the_new_owner_in_order_and_before_new_entries() -> None:
    scene = Scene()
    a = scene.connect("a", 1)
    held = [scene.entry(1) for _ in range(3)]
    take(scene.type, *held)
    b = scene.connect("b")
    scene.leave(a, *reversed(held))
    scene.give(b, 1)
    new = scene.entry(1)
    assert take(scene.type, new) == ["-"]
    assert scene.type.put_aside(new)
    assert scene.replays(*held, new) == [(0, "b"), (1, "b"), (2, "b"), (3, "b")]


def test_nobody_gets_a_slot_that_a_third_one_still_holds() -> None:
    scene = Scene()
    scene.connect("a", 1)
    held, waits = scene.entry(1), scene.entry(1)
    take(scene.type, held)
    b = scene.connect("b", 1)
    assert take(scene.type, waits) == ["-"]
    scene.type.put_aside(waits)
    c = scene.connect("c")
    scene.leave(b)
    scene.give(c, 1)
    assert scene.type.next_replay() is None
    scene.type.forget(held.position)
    assert scene.replays(waits) == [(1, "c")]


def test_a_consumer_without_room_stops_its_own_keys_only() -> None:
    scene = Scene()
    a = scene.connect("a", 1, permits=1)
    scene.connect("b", 2)
    entries = [scene.entry(slot) for slot in (1, 1, 2, 1, 2)]
    names = []
    for entry in entries:
        names += take(scene.type, entry)
        assert names[-1] != "-" or scene.type.put_aside(entry)
    assert names == ["a", "-", "b", "-", "b"]
    assert scene.type.replay_count == 2
    a.permits = 1
    scene.type.wake(a)
    assert scene.replays(*entries) == [(1, "a")]
    new = scene.entry(1)
    a.permits = 9
    scene.type.wake(a)
    assert take(scene.type, new) == ["-"]  # an earlier entry of the slot waits still
    assert scene.replays(*entries) == [(3, "a")]
    assert take(scene.type, new) == ["a"]


def test_only_so_many_entries_wait_and_then_nothing_new_is_read() -> None:
    scene = Scene(limit=2)
    scene.connect("a", 1, permits=0)
    scene.connect("b", 2)
    assert scene.type.room() == 2
    entries = [scene.entry(1) for _ in range(3)]
    assert [scene.type.put_aside(entry) for entry in entries] == [True, True, False]
    assert scene.type.room() == 0
    scene.type.forget(entries[0].position)
    assert scene.type.room() == 1


def test_without_any_room_entries_stay_where_they_are() -> None:
    scene = Scene()
    scene.connect("a", 1, permits=0)
    assert scene.type.room() == 0
    assert not scene.type.put_aside(scene.entry(1))


def test_acknowledged_while_it_waits_is_done() -> None:
    scene = Scene()
    a = scene.connect("a", 1, permits=0)
    scene.connect("b", 2)
    entries = [scene.entry(1) for _ in range(4)]
    for entry in entries:
        assert scene.type.put_aside(entry)
    for index in (2, 0):
        scene.type.forget(entries[index].position)
        assert not scene.type.waits(entries[index].position)
    a.permits = 9
    scene.type.wake(a)
    assert scene.replays(*entries) == [(1, "a"), (3, "a")]


def test_out_of_order_delivery_neither_drains_nor_waits() -> None:
    scene = Scene(ordered=False)
    a = scene.connect("a", 1, permits=1)
    held, waits, new = (scene.entry(1) for _ in range(3))
    take(scene.type, held)
    assert take(scene.type, waits) == ["-"]
    b = scene.connect("b", 1)
    scene.type.put_aside(waits)
    assert take(scene.type, new) == ["b"]
    assert scene.replays(waits) == [(1, "b")]
    scene.leave(a, held)
    assert scene.replays(held) == [(0, "b")]
    for entry in (held, waits, new):
        scene.type.forget(entry.position)
    assert scene.type.replay_count == 0
    assert b.permits == 96


def test_a_slot_of_nobody_waits_for_somebody() -> None:
    ranges = KeyShared(StickyRanges(), lambda consumers: 10)
    ranges.add(FakeConsumer("a", permits=9, key_ranges=((1, 10),)))
    entry = Entry(b"", 1, False, False, ledger_id=1, entry_id=0)
    entry._key_hash = 20
    assert take(ranges, entry) == ["-"]
    assert ranges.put_aside(entry)
    assert ranges.next_replay() is None
    ranges.add(FakeConsumer("b", permits=9, key_ranges=((11, 65535),)))
    assert not ranges.plan()
    assert ranges.next_replay() == entry.position
    assert take(ranges, entry) == ["b"]


def test_an_entry_whose_key_is_not_known_is_sorted_in_when_it_was_read() -> None:
    scene = Scene()
    a = scene.connect("a", 1, permits=0)
    scene.connect("b", 2)
    early, late = scene.entry(1), scene.entry(1)
    assert scene.type.put_aside(late)
    scene.type.give_back(early.position)  # it was pending nowhere: a delayed message is due
    assert scene.type.waits(early.position)
    assert scene.replays(early) == []
    assert scene.type.replay_count == 2
    a.permits = 9
    scene.type.wake(a)
    assert scene.replays(early, late) == [(0, "a"), (1, "a")]


def test_nacks_in_a_loop_leave_nothing_behind() -> None:
    scene = Scene()
    a = scene.connect("a", 1, permits=1)
    entries = [scene.entry(1) for _ in range(2)]
    take(scene.type, entries[0])
    scene.connect("b", 2)
    scene.type.put_aside(entries[1])
    for _ in range(1000):
        scene.type.give_back(entries[0].position)
        a.permits = 1
        scene.type.wake(a)
        assert scene.replays(*entries) == [(0, "a")]
    assert sum(map(len, scene.type._waiting._agendas.values())) <= 1


# -- consumers that come and go while much waits ---------------------------------------------------


class Crowd:
    """Very many entries that wait for one consumer, which has no room."""

    def __init__(self, selector: ConsumerSelector, entries: int) -> None:
        self.type = KeyShared(selector, lambda consumers: entries)
        self.first = FakeConsumer("first", permits=0)
        self.type.add(self.first)
        self.entries = []
        for number in range(entries):
            entry = Entry(b"", 1, False, False, ledger_id=1, entry_id=number)
            entry._key_hash = murmur3_32(f"key{number}")
            self.entries.append(entry)
        holder = FakeConsumer("holder")
        self.type.add(holder)
        self.type.remove(holder)
        for entry in self.entries:
            self.type._waiting.add(entry.position, selector.slot(entry.key_hash))
        while self.type.plan():
            pass


@pytest.mark.parametrize("selector", [HashRing, AutoSplitRanges])
def test_a_join_plans_the_slots_that_move_and_few_at_once(
    selector: type[HashRing | AutoSplitRanges], monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(selector(), 100_000)
    planned: list[int] = []
    plan = WaitingSlots._plan

    def counted(self: WaitingSlots, slot: int) -> None:
        planned.append(slot)
        plan(self, slot)

    monkeypatch.setattr(WaitingSlots, "_plan", counted)
    for number in range(20):
        crowd.type.add(FakeConsumer(f"c{number}", permits=1))
    assert planned == []
    crowd.type.next_replay()
    assert len(planned) <= SLOTS_PLANNED_AT_ONCE_MAX
    more = True
    while more:
        before = len(planned)
        more = crowd.type.plan()
        assert len(planned) - before <= SLOTS_PLANNED_AT_ONCE_MAX
    assert len(set(planned)) == len(planned)  # once for all joins
    planned.clear()
    late = FakeConsumer("late", permits=1)
    crowd.type.add(late)
    while crowd.type.plan():
        pass
    mine = {slot for slot in crowd.type._waiting._queues if crowd.type.selector.owner(slot) is late}
    assert set(planned) == mine
    assert len(planned) == len(mine) < RANGE_SIZE / 8


@pytest.mark.parametrize("selector", [HashRing, AutoSplitRanges])
def test_what_waits_goes_to_the_new_owners_in_order_before_all_is_planned(
    selector: type[HashRing | AutoSplitRanges], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_queue, "SLOTS_PLANNED_AT_ONCE_MAX", 3)
    crowd = Crowd(selector(), 300)
    again = [
        Entry(b"", 1, False, False, ledger_id=2, entry_id=entry.entry_id) for entry in crowd.entries
    ]
    for entry, earlier in zip(again, crowd.entries, strict=True):
        entry._key_hash = earlier.key_hash
        crowd.type._waiting.add(entry.position, crowd.type.selector.slot(entry.key_hash))
    known = {entry.position: entry for entry in [*crowd.entries, *again]}
    crowd.first.permits = len(known)
    crowd.type.wake(crowd.first)
    consumers = [FakeConsumer(f"c{number}", permits=len(known)) for number in range(5)]
    received: dict[int, list[Position]] = {}
    more = True
    while more or crowd.type.replay_count:
        if consumers:
            crowd.type.add(consumers.pop())
        more = crowd.type.plan()
        while (position := crowd.type.next_replay()) is not None:
            consumer = crowd.type.choose(known[position])
            assert consumer is not None
            slot = crowd.type.selector.slot(known[position].key_hash)
            assert consumer is crowd.type.selector.owner(slot)
            received.setdefault(known[position].key_hash, []).append(position)
            crowd.type.forget(position)
    assert sum(map(len, received.values())) == len(known)
    assert all(positions == sorted(positions) for positions in received.values())


def test_consumers_that_come_and_go_leave_nothing_behind() -> None:
    crowd = Crowd(HashRing(), 5000)
    waiting = crowd.type._waiting
    for number in range(100):
        guest = FakeConsumer(f"c{number}", permits=1)
        crowd.type.add(guest)
        for _ in range(number % 13):
            crowd.type.plan()
        crowd.type.remove(guest)
    while crowd.type.plan():
        pass
    assert list(waiting._agendas) == [crowd.first]
    assert set(waiting._planned) == set(waiting._queues)
    assert len(waiting._agendas[crowd.first]) == len(waiting._queues)


# -- keys and limits -------------------------------------------------------------------------------


def metadata(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, **fields)


@pytest.mark.feature("F33")
@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"partition_key": "k", "ordering_key": b""}, b""),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "AP8=", "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({}, b"p-7"),
        ({"null_partition_key": True}, b"p-7"),
    ],
)
def test_the_key_of_an_entry_is_the_ordering_key_else_the_key_else_its_own(
    fields: dict[str, object], key: bytes
) -> None:
    entry = Entry(build_entry(metadata(**fields), b"x"), 1, False, False)
    assert entry.key_hash == murmur3_32(key)
    assert entry.key_hash == murmur3_32(key)


@pytest.mark.parametrize(
    ("per_consumer", "per_subscription", "limit"),
    [(5, 100, 25), (50, 100, 100), (0, 100, 100), (5, 0, 25), (0, 0, 200_000)],
)
def test_the_look_ahead_is_the_smaller_of_two_limits(
    per_consumer: int, per_subscription: int, limit: int
) -> None:
    settings = Settings(
        keySharedLookAheadMsgInReplayThresholdPerConsumer=per_consumer,
        keySharedLookAheadMsgInReplayThresholdPerSubscription=per_subscription,
    )
    assert look_ahead(settings, 5) == limit


def test_without_a_look_ahead_the_limits_of_unacknowledged_messages_hold() -> None:
    none = {
        "keySharedLookAheadMsgInReplayThresholdPerConsumer": 0,
        "keySharedLookAheadMsgInReplayThresholdPerSubscription": 0,
    }
    few = Settings(**none, maxUnackedMessagesPerConsumer=10)
    assert look_ahead(few, 3) == 30
    unlimited = Settings(
        **none, maxUnackedMessagesPerConsumer=0, maxUnackedMessagesPerSubscription=0
    )
    assert look_ahead(unlimited, 3) == 200_000


def test_positions_are_made_once() -> None:
    entry = Entry(b"", 1, False, False, ledger_id=3, entry_id=4)
    assert entry.position == Position(3, 4)
    assert entry.position is entry.position
