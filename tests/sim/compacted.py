"""A topic of a simulation that is compacted and trimmed: of each key its newest message stays."""

from __future__ import annotations

import asyncio
import contextlib
import random

from pulsark.dispatch.model.subscription_type import SubType
from pulsark.errors import StorageError
from pulsark.wire.topic_name import TopicName
from tests.sim.actors import Gone, read_topic
from tests.sim.topics import TopicWorld
from tests.support.broker_clients import BrokerInMemory
from tests.support.deliveries import Broken
from tests.support.history import Id, Payload

NAMESPACE = "public/compacted"
NAME = f"persistent://{NAMESPACE}/t"
POLICIES = {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}
KEYS = tuple(f"k{number}" for number in range(40))
"""So many that some are never published again."""
SUBSCRIPTIONS = (("exclusive", SubType.Exclusive, 1),)


class CompactedTopic(TopicWorld):
    """Nothing is kept but what its subscription lacks, and what compaction made of the rest."""

    def __init__(self) -> None:
        super().__init__(NAME, subscriptions=SUBSCRIPTIONS, keys=KEYS)
        self.ready = False
        """Whether both its subscription and that of compaction certainly exist.

        Nothing is published before: it might be trimmed at once.
        """

    async def prepare(self, broker: BrokerInMemory) -> None:
        """Have the namespace, and both subscriptions."""
        namespaces = broker.broker.resources.namespaces
        if await namespaces.get(NAMESPACE) is None:
            await namespaces.create(NAMESPACE, policies=POLICIES)
        for consumer in self.consumers:
            await consumer.connect(broker)
        try:
            topic = await broker.broker.topics.load(TopicName.parse(NAME))
            await topic.compactor.run()
        except StorageError as error:
            raise Gone from error
        self.ready = True

    async def tidy(self, broker: BrokerInMemory, rng: random.Random) -> None:
        """What makes entries go: they are acknowledged, compacted and trimmed."""
        topic = broker.broker.topics.get_loaded(TopicName.parse(NAME))
        if topic is None:
            raise Gone
        choice = rng.random()
        if choice < 0.3:
            await self._keep_up(broker)
        elif choice < 0.6:
            topic.retention.trim_soon()
        else:
            topic.compactor.start()
        await asyncio.sleep(rng.choice([0, 0.0005, 0.002, 0.02]))
        if choice > 0.8:
            with contextlib.suppress(StorageError):
                await broker.broker.topics.unload(TopicName.parse(NAME))

    async def _keep_up(self, broker: BrokerInMemory) -> None:
        for consumer in self.consumers:
            await consumer.connect(broker)
            await asyncio.sleep(0.01)
            consumer.look()
            consumer.ack_all()

    async def _log(self, broker: BrokerInMemory) -> list[tuple[Id, Payload]]:
        """What is left, and what is known to have been there."""
        left = await read_topic(broker, NAME)
        known = {id_: payload for payload, id_ in self.history.receipts.items()}
        for deliveries in self.subscriptions.values():
            known |= deliveries.identities.payloads
        await self._check_compacted(broker)
        return sorted({**known, **dict(left)}.items())

    async def _check_compacted(self, broker: BrokerInMemory) -> None:
        """Who reads what compaction left gets the newest message of each key, or a later one."""
        found = await read_topic(broker, NAME, compacted=True)
        if [id_ for id_, _ in found] != sorted({id_ for id_, _ in found}):
            raise Broken("C3: what compaction left is not in order")
        keys = {payload: key for p in self.producers for payload, key in p.key_of.items()}
        newest: dict[str, Id] = {}
        for id_, payload in found:
            newest[keys[payload]] = id_
        for payload, id_ in self.history.receipts.items():
            key = keys[payload]
            if key not in newest or newest[key] < id_:
                raise Broken(f"C1: compaction lost {payload} at {id_}, the newest of {key}")
