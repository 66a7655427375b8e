"""What a broker asks of the metadata store for a topic that it takes over: it may be one of very
many, whose clients come all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pulsark.metadata.changes import Change
from pulsark.metadata.namespaces import even_boundaries
from pulsark.metadata.store import Versioned
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, scenario

READS_MAX = 9
COMMITS_MAX = 6
"""Three of them end the ledger that was written; with the first message come the other three."""


class Counts:
    """Of what is asked of a store."""

    def __init__(self, store: Any) -> None:
        self.reads: list[str] = []
        self.commits = self.ids = 0
        get, commit, next_id = store.get, store.commit, store.next_id

        async def counted_get(path: str) -> Versioned | None:
            self.reads.append(path)
            for _ in range(3):  # as a server: a client's other request comes meanwhile
                await asyncio.sleep(0)
            found: Versioned | None = await get(path)
            return found

        async def counted_commit(changes: Sequence[Change]) -> Sequence[int]:
            self.commits += 1
            versions: Sequence[int] = await commit(changes)
            return versions

        async def counted_next_id(path: str) -> int:
            self.ids += 1
            number: int = await next_id(path)
            return number

        store.get, store.commit, store.next_id = counted_get, counted_commit, counted_next_id


async def come(client: Client, number: int) -> None:
    """A producer and a consumer, asked for together, and a message."""
    topic = f"persistent://public/one/t{number}"
    subscribe = client.subscribe_command(topic, consumer_id=number)
    client.send(subscribe, client.producer_command(topic, f"p{number}", number))
    assert await client.outcome() == 0
    await client.take(pb.BaseCommand.PRODUCER_SUCCESS)
    await client.publish(0, number)


@scenario()
async def test_a_topic_that_is_taken_over_costs_a_few_reads_and_commits(
    broker: BrokerInMemory,
) -> None:
    await broker.broker.resources.namespaces.create("public/one", boundaries=even_boundaries(1))
    client, other = Client(broker), await broker.another()
    for number in (1, 2):
        await come(client, number)
    await broker.metadata.close()  # what it had is nobody's
    client = Client(other)
    await come(client, 1)  # with it comes what the bundle costs
    counts = Counts(other.metadata)
    await come(client, 2)
    record = "/managed-ledgers/public/one/persistent/t2"
    assert counts.reads.count(record) == 1, "to see that it is there, as its owner"
    assert len(counts.reads) <= READS_MAX, counts.reads
    assert counts.commits + counts.ids <= COMMITS_MAX


@scenario()
async def test_policies_are_worked_out_once_for_a_namespace_until_they_or_settings_change(
    broker: BrokerInMemory,
) -> None:
    source, settings = broker.broker.policy_source, broker.broker.dynamic_settings
    one, two = (TopicName.parse(f"public/default/t{number}") for number in (1, 2))
    policies = await source.current(one)
    assert await source.current(two) is policies
    await settings.set("maxProducersPerTopic", "7")
    assert (await source.current(one)).max_producers == 7
    namespaces = broker.broker.resources.namespaces
    await namespaces.update(
        "public/default", lambda old: replace(old, policies={"max_producers_per_topic": 8})
    )
    assert (await source.current(one)).max_producers == 8
    await broker.broker.resources.topic_policies.update(
        one, lambda _: {"max_producers_per_topic": 9}
    )
    assert (await source.current(one)).max_producers == 9
    assert (await source.current(two)).max_producers == 8
