"""Changes of the metadata store that nobody told: whoever follows it looks at everything again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.security.facts import Rules
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import NAME, BrokerInMemory, Client, Command, scenario
from tests.unit.dispatch.connection.test_revocation import BOTH, attached, begin, grant
from tests.unit.dispatch.topics.test_topic_lists import PREFIX, create, update, watch


@contextlib.contextmanager
def unheard(broker: BrokerInMemory) -> Iterator[None]:
    """What is changed in the body is told to nobody, and in the end it is said that it is so."""
    watches = cast("MemoryMetadataStore", broker.broker.metadata).tree.watches
    tell = watches.tell
    watches.tell = lambda path: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        watches.tell = tell  # type: ignore[method-assign]
    watches.tell_missed()


@scenario()
async def test_watchers_of_topics_hear_what_came_and_went(broker) -> None:
    await create(broker, "a-1", "b-1")
    client = Client(broker)
    await watch(client, "public/default/a-.*")
    with unheard(broker):
        await create(broker, "a-2", "b-2")
        await broker.broker.deletion.delete_topic(TopicName.parse(f"{PREFIX}a-1"))
    found = await update(client)
    assert (list(found.new_topics), list(found.deleted_topics)) == (
        [f"{PREFIX}a-2"],
        [f"{PREFIX}a-1"],
    )
    await create(broker, "a-3")
    assert list((await update(client)).new_topics) == [f"{PREFIX}a-3"]


@scenario()
async def test_topics_in_memory_get_the_policies_that_were_set(broker) -> None:
    topic = await broker.broker.topics.load(NAME, create=True)
    before = topic.policies

    def changed(namespace: Any) -> Any:
        return replace(namespace, policies={**namespace.policies, "message_ttl_in_seconds": 77})

    with unheard(broker):
        await broker.broker.resources.namespaces.update("public/default", changed)
        await asyncio.sleep(0.01)
        assert topic.policies == before
    await asyncio.sleep(0.01)
    assert topic.policies != before


@scenario(rules=Rules(frozenset({"root"})))
async def test_a_right_that_went_takes_what_clients_have(broker) -> None:
    await begin(broker, it=BOTH)
    client = await attached(broker, "it")
    with unheard(broker):
        await grant(broker, "it", [])
    await client.take(Command.CLOSE_PRODUCER)
    await client.take(Command.CLOSE_CONSUMER)
