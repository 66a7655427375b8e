"""A topic of a simulation whose messages are erased: they reach nobody, and all others still do.

It has a table, because that is where messages are erased.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection

from pulsark.dispatch.topic.topic import Topic
from pulsark.storage.managed_ledger.erasure import erased_ids
from pulsark.wire.topic_name import TopicName
from tests.sim.actors import TOPIC, read_topic
from tests.sim.topics import TopicWorld
from tests.support.broker_clients import BrokerInMemory
from tests.support.deliveries import Broken, Deliveries
from tests.support.history import Id, Payload

NAME = TopicName.parse(f"{TOPIC}-erased")

Attempt = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
"""Does something that may fail, or be cancelled."""


class ErasedDeliveries(Deliveries):
    """One of its subscriptions."""

    topic: ErasedTopic

    def delivered(self, consumer: int, id_: Id, payload: Payload, key: str) -> None:
        if id_ in self.topic.erased:
            raise Broken(f"C11: {self.name} delivered {id_}, which was erased before")
        for waiting in self._open_of_key.values():
            waiting -= self.topic.wanted  # whoever has them need not give them back
        super().delivered(consumer, id_, payload, key)

    def finish(self, log: dict[Id, Payload], drained: set[Id]) -> None:
        # Nobody has to have seen them, and nobody has to have acknowledged them.
        self.seen |= self.topic.wanted
        self.asked |= self.topic.wanted
        super().finish(log, drained)


class ErasedTopic(TopicWorld):
    """Its clients, and the messages that somebody wanted to be erased."""

    def __init__(self) -> None:
        super().__init__(str(NAME), deliveries=ErasedDeliveries)
        self.wanted: set[Id] = set()
        """It was tried; whether they are erased is not known."""
        self.erased: set[Id] = set()
        for deliveries in self.subscriptions.values():
            assert isinstance(deliveries, ErasedDeliveries)
            deliveries.topic = self

    async def erase_some(
        self, broker: BrokerInMemory, rng: random.Random, attempt: Attempt
    ) -> None:
        """Erase some messages that were confirmed."""
        topic, places = (
            broker.broker.topics.get_loaded(NAME),
            sorted(self.history.receipts.values()),
        )
        if topic is None or not places:
            return
        if rng.random() < 0.5:
            places = places[-6:]  # consumers have them, or get them in a moment
        ids = rng.sample(places, min(rng.randint(1, 3), len(places)))
        done = False

        async def all_of_it() -> None:
            nonlocal done
            await self._erase(broker, topic, ids)
            done = True

        await attempt(all_of_it)
        if done:
            await asyncio.sleep(0.001)
            self.look()  # what was on its way before
            self.erased.update(ids)

    async def _erase(self, broker: BrokerInMemory, topic: Topic, ids: Collection[Id]) -> None:
        self.wanted.update(ids)
        places = ((id_.ledger_id, id_.entry_id, id_.batch_index) for id_ in ids)
        await broker.broker.erasure.erase(NAME, erased_ids(places))
        await broker.broker.erasure.finish(NAME, None)

    async def _log(self, broker: BrokerInMemory) -> list[tuple[Id, Payload]]:
        """What is there when all is erased that was to be, and that."""
        before = await read_topic(broker, self.name)
        await self._erase(broker, await broker.broker.topics.load(NAME, create=False), self.wanted)
        left = await read_topic(broker, self.name)
        ids = {id_ for id_, _ in left}
        for id_ in self.wanted & ids:
            raise Broken(f"C11: {id_} was erased, and is there")
        for id_, _ in before:
            if id_ not in ids | self.wanted:
                raise Broken(f"C1: {id_} was erased, and nobody asked for it")
        payloads = {id_: payload for payload, id_ in self.history.receipts.items()}
        return sorted([*left, *((id_, payloads[id_]) for id_ in self.wanted)])
