"""What every subscription type promises, whatever its consumers and its dispatcher do.

Random runs drive a type as a dispatcher may: it offers new entries in order, or one that waits, in
any alternation; consumers come and go, get permits, acknowledge and give back.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.model.subscription_type import SubscriptionType, SubType, TypeSpec
from pulsark.dispatch.subscription.hash_ranges import RANGE_SIZE
from pulsark.dispatch.subscription.subscription_types import new_type
from pulsark.errors import ClientError
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.support.fake_consumers import FakeConsumer

TOPIC = TopicName.parse("persistent://public/default/t-partition-1")
SEEDS = 40
STEPS = 250
CONSUMERS = 3
KEYS = [1, 20_000, 21_000, 45_000, 64_000]
"""Hashes of keys; some share a consumer."""


def made(spec: TypeSpec, **settings: Any) -> Callable[[], SubscriptionType]:
    limits = {"keySharedLookAheadMsgInReplayThresholdPerConsumer": 2, **settings}
    return lambda: new_type(spec, TOPIC, Settings(**limits))


TYPES = {
    "exclusive": made(TypeSpec(SubType.Exclusive)),
    "failover": made(TypeSpec(SubType.Failover)),
    "shared": made(TypeSpec(SubType.Shared)),
    "key-shared-ranges": made(
        TypeSpec(SubType.Key_Shared), subscriptionKeySharedUseConsistentHashing=False
    ),
    "key-shared-ring": made(
        TypeSpec(SubType.Key_Shared), subscriptionKeySharedUseConsistentHashing=True
    ),
    "key-shared-sticky": made(TypeSpec(SubType.Key_Shared, sticky=True)),
    "key-shared-any-order": made(TypeSpec(SubType.Key_Shared, allow_out_of_order=True)),
}


class Run:
    """A subscription of the type, and where each of its entries is."""

    def __init__(self, type_: Any, rng: random.Random) -> None:
        self.type = type_
        self.rng = rng
        self.ordered = type_.sub_type == SubType.Key_Shared and type_._ordered
        self.entries: list[Entry] = []
        self.read = 0
        """Entries before it are held, waiting or acknowledged."""
        self.consumers: list[FakeConsumer] = []
        self.held: dict[Position, FakeConsumer] = {}
        self.waiting: set[Position] = set()
        self.acked: set[Position] = set()
        self._names = count()

    # What happens.

    def connect(self) -> None:
        number = next(self._names)
        first = number % CONSUMERS * RANGE_SIZE // CONSUMERS
        last = (number % CONSUMERS + 1) * RANGE_SIZE // CONSUMERS - 1
        consumer = FakeConsumer(f"c{number}", permits=0, key_ranges=((first, last),))
        if len(self.consumers) < CONSUMERS:
            with contextlib.suppress(ClientError):  # its place is taken
                self.type.add(consumer)
                self.consumers.append(consumer)

    def leave(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop(self.rng.randrange(len(self.consumers)))
            self.type.remove(consumer)
            mine = [place for place, holder in self.held.items() if holder is consumer]
            self.rng.shuffle(mine)
            self._return(mine)

    def flow(self) -> None:
        if self.consumers:
            consumer = self.rng.choice(self.consumers)
            consumer.permits += self.rng.randint(1, 3)
            self.type.wake(consumer)

    def publish(self) -> None:
        entry = Entry(b"", 1, False, False, ledger_id=1, entry_id=len(self.entries))
        entry._key_hash = self.rng.choice(KEYS)
        self.entries.append(entry)

    def offer_new(self) -> bool:
        """Whether there was one, and it need not be offered again."""
        if self.read == len(self.entries) or not self.type.room():
            return False
        entry = self.entries[self.read]
        if entry.position not in self.acked and not self._offer(entry):
            if not self.type.put_aside(entry):
                return False
            self.waiting.add(entry.position)
        self.read += 1
        return True

    def offer_waiting(self) -> bool:
        plan = self.type.plan
        is_more_to_plan = plan is not None and plan()
        place = self.type.next_replay()
        if place is None:
            return is_more_to_plan
        assert place in self.waiting, f"{place} does not wait"
        entry = self.entries[place.entry_id]
        return self._offer(entry) or self.type.put_aside(entry)

    def ack(self) -> None:
        if self.held:
            place = self.rng.choice(list(self.held))
            del self.held[place]
            self.acked.add(place)
            self.type.forget(place)

    def give_back(self) -> None:
        if self.held:
            self._return([self.rng.choice(list(self.held))])

    def _return(self, places: list[Position]) -> None:
        if not self.type.tracks_pending:  # the subscription begins again behind its cursor
            self.type.clear()
            self.held.clear()
            self.read = 0
            return
        for place in places:
            del self.held[place]
            self.waiting.add(place)
            self.type.give_back(place)

    # What has to hold.

    def _offer(self, entry: Entry) -> bool:
        consumer = self.type.choose(entry)
        if consumer is None:
            return False
        assert consumer in self.consumers, "it has left"
        assert consumer.permits > 0, "it has no room"
        assert self.type.active in (None, consumer), "another one is the active one"
        if self.ordered:
            slot = self.type.selector.slot
            for earlier in self.entries[: entry.position.entry_id]:
                if slot(earlier.key_hash) != slot(entry.key_hash) or earlier.position in self.acked:
                    continue
                assert earlier.position not in self.waiting, "it overtakes one of its key"
                assert self.held[earlier.position] is consumer, "its key is with another consumer"
        consumer.permits -= 1
        self.held[entry.position] = consumer
        self.waiting.discard(entry.position)
        return True

    def check(self) -> None:
        assert self.type.consumer_count == len(self.consumers)
        assert set(self.type.consumers) == set(self.consumers)
        if self.type.tracks_pending:
            assert self.type.replay_count == len(self.waiting)
            assert all(self.type.waits(e.position) == (e.position in self.waiting)
                       for e in self.entries)  # fmt: skip

    def finish(self) -> None:
        """With consumers that have room and acknowledge, everything goes out."""
        for _ in range(CONSUMERS):
            self.connect()
        for _ in range(3 * len(self.entries)):
            for consumer in self.consumers:
                consumer.permits += 1
                self.type.wake(consumer)
            while self.offer_waiting() or self.offer_new():
                pass
            while self.held:
                self.ack()
        assert len(self.acked) == len(self.entries), "something is stuck"
        self.check()


@pytest.mark.parametrize("new", TYPES.values(), ids=TYPES)
def test_entries_go_to_who_may_have_them_in_order_and_all_of_them(
    new: Callable[[], SubscriptionType],
) -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        run = Run(new(), rng)
        steps = [run.publish, run.publish, run.flow, run.flow, run.offer_new, run.offer_new]
        steps += [run.offer_waiting, run.ack, run.ack, run.give_back, run.connect]
        for _ in range(STEPS):
            rng.choice([*steps, run.leave] if rng.random() < 0.4 else steps)()
            run.check()
        run.finish()
