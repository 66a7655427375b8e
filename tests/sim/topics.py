"""One topic of a simulation: its clients, and what they may expect of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pulsark.dispatch.model.subscription_type import SubType
from tests.sim.actors import KEYS, SimConsumer, SimProducer, read_topic
from tests.support.broker_clients import BrokerInMemory
from tests.support.deliveries import Broken, Deliveries, Identities
from tests.support.history import History, Id, Payload, violations

SUBSCRIPTIONS = (
    ("exclusive", SubType.Exclusive, 1),
    ("failover", SubType.Failover, 2),
    ("shared", SubType.Shared, 3),
    ("key-shared", SubType.Key_Shared, 3),
)


class _Unruly(Deliveries):
    """A subscription whose cursor is moved: messages come again, or not at all."""

    def delivered(self, consumer: int, id_: Id, payload: Payload, key: str) -> None:
        self.identities.check(id_, payload)
        self.seen.add(id_)
        self.held.setdefault(consumer, {})[id_] = key

    def finish(self, log: dict[Id, Payload], drained: set[Id]) -> None:
        phantoms = [id_ for id_ in self.seen if id_ not in log]
        if phantoms:
            raise Broken(f"C2: {self.name} delivered {phantoms[0]}, which the topic does not have")


class TopicWorld:
    """One topic: its clients, and all that was promised to them."""

    def __init__(
        self,
        name: str,
        *,
        prefix: str = "",
        unruly: bool = False,
        deliveries: type[Deliveries] = Deliveries,
        subscriptions: Sequence[tuple[str, SubType, int]] = SUBSCRIPTIONS,
        keys: Sequence[str] = KEYS,
    ) -> None:
        self.name = name
        self.history = History()
        identities = Identities(self.history.sent)
        names = (f"{prefix}p", f"{prefix}q")
        self.producers = [SimProducer(n, self.history, name, keys) for n in names]
        self.consumers: list[SimConsumer] = []
        self.subscriptions: dict[int, Deliveries] = {}
        kind_of = _Unruly if unruly else deliveries
        for subscription, kind, count in subscriptions:
            ordered = kind in (SubType.Exclusive, SubType.Failover)
            made = kind_of(subscription, ordered, kind == SubType.Key_Shared, identities)
            self.subscriptions[kind] = made
            self.consumers += [SimConsumer(kind, made, topic=name) for _ in range(count)]

    @property
    def clients(self) -> list[SimProducer | SimConsumer]:
        return [*self.producers, *self.consumers]

    def look(self) -> None:
        """Take what the broker sent."""
        for producer in self.producers:
            producer.look()
        # Those that were told to go first: what they had may be with others already.
        for consumer in sorted(self.consumers, key=lambda c: c.connected):
            consumer.look()

    async def finish(self, broker: BrokerInMemory, *, deduplicates: bool) -> None:
        """Everything heals: producers confirm all, subscriptions give what is left."""
        for producer in self.producers:
            for _ in range(10):
                await producer.connect(broker)
                await asyncio.sleep(0.1)
                producer.look()
            if producer.pending:
                raise Broken(f"C1: {producer.name} gets no receipt")
        self.history.log = await self._log(broker)
        for kind, deliveries in self.subscriptions.items():
            await self._drain(broker, kind, deliveries)
        found = violations(self.history)
        if found:
            raise Broken(found[0])
        payloads = [payload for _, payload in self.history.log]
        for producer in self.producers:
            lost = producer.known_before - set(payloads)
            if lost:
                raise Broken(f"C1: {min(lost)} is not stored, and was taken for a duplicate")
        if deduplicates and len(payloads) > len(set(payloads)):
            raise Broken("C5: a message is stored twice")

    async def _log(self, broker: BrokerInMemory) -> list[tuple[Id, Payload]]:
        """Everything that was published and has to be there."""
        return await read_topic(broker, self.name)

    async def _drain(self, broker: BrokerInMemory, kind: int, deliveries: Deliveries) -> None:
        consumer = SimConsumer(kind, deliveries, permits=1000, topic=self.name)
        consumer.drained = set()
        await consumer.connect(broker)
        quiet = 0
        while quiet < 3:
            before = len(consumer.drained)
            await asyncio.sleep(1.1)
            consumer.look()
            quiet = quiet + 1 if len(consumer.drained) == before else 0
        deliveries.finish(dict(self.history.log), consumer.drained)
        consumer.leave()
