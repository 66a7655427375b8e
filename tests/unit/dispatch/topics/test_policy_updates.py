"""Topics in memory have the policies that are set, however changes meet each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from pulsark.dispatch.policies.policies import effective
from pulsark.errors import ClientError
from pulsark.metadata.namespaces import Namespace
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, scenario
from tests.unit.dispatch.test_missed_changes import unheard

NAMESPACES: Final = ("public/one", "public/two")
PARTED: Final = TopicName.parse("persistent://public/one/p")
NAMES: Final = [
    *(TopicName.parse(f"persistent://{namespace}/t") for namespace in NAMESPACES),
    TopicName.parse("non-persistent://public/two/n"),
    *PARTED.partitions(2),
]
VALUES: Final = {"message_ttl_in_seconds": (0, 60, 120), "max_producers_per_topic": (3, 4)}
OWN_VALUES: Final = {"message_ttl_in_seconds": (0, 60, 120), "max_producers": (3, 4)}


def hesitant(call: Callable[..., Awaitable[Any]], chance: random.Random) -> Any:
    async def slowly(*given: Any) -> Any:
        for _ in range(chance.choice((0, 0, 1, 5, 30))):
            await asyncio.sleep(0)
        answer = await call(*given)
        for _ in range(chance.choice((0, 0, 1, 5, 30))):
            await asyncio.sleep(0)
        return answer

    return slowly


def some(values: dict[str, tuple[int, ...]], chance: random.Random) -> dict[str, int]:
    return {key: chance.choice(found) for key, found in values.items() if chance.randrange(2)}


@pytest.mark.parametrize("seed", range(15))
@scenario(brokerDeleteInactiveTopicsEnabled=False)
async def test_topics_have_the_policies_that_were_set_last(
    broker: BrokerInMemory, seed: int
) -> None:
    chance, one, untold = random.Random(seed), broker.broker, asyncio.Lock()
    for namespace in NAMESPACES:
        await one.resources.namespaces.create(namespace)
    await one.creation.create_partitioned_topic(PARTED, 2, {})
    for name in ("get", "children"):
        setattr(broker.metadata, name, hesitant(getattr(broker.metadata, name), chance))

    async def of_namespace() -> None:
        def changed(old: Namespace) -> Namespace:
            return replace(old, policies=some(VALUES, chance))

        await one.resources.namespaces.update(chance.choice(NAMESPACES), changed)

    async def of_topic() -> None:
        own = some(OWN_VALUES, chance)
        await one.resources.topic_policies.update(chance.choice(NAMES).base, lambda _: own)

    async def loads() -> None:
        with suppress(ClientError):
            await one.creation.topic_for_clients(chance.choice(NAMES))

    async def unloads() -> None:
        await one.topics.unload(chance.choice(NAMES))

    async def is_not_told() -> None:
        async with untold:
            with unheard(broker):
                await of_namespace()
                await of_topic()

    async def sets_defaults() -> None:
        object.__setattr__(one.settings, "ttlDurationDefaultInSeconds", chance.choice((0, 7, 8)))
        await one.policy_updates.refresh_all()

    actions = [of_namespace, of_topic, loads, loads, unloads, is_not_told, sets_defaults]
    for _ in range(12):
        tasks = []
        for _ in range(chance.randrange(1, 8)):
            tasks.append(asyncio.create_task(chance.choice(actions)()))
            for _ in range(chance.choice((0, 1, 5, 30))):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        for topic in one.topics.served():
            namespace = await one.resources.namespaces.get(topic.name.namespace_name)
            own = await one.resources.topic_policies.get(topic.name.base)
            assert topic.policies == effective(one.settings, namespace.policies, own)
