"""Lists of topics where the metadata store is another machine, which answers after a while."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.dispatch.loop.turns import answers_in_turns
from pulsark.dispatch.topics.catalog import TopicCatalog
from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import managed_ledger_path
from pulsark.metadata.resources import Resources
from pulsark.metadata.store import ABSENT, Versioned
from pulsark.runtime import Runtime
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord, TopicState
from pulsark.wire.topic_name import TopicName
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate

ANSWER_SECONDS = 0.01
TOPICS = 300
NAMESPACE = "public/default"


class FarStore(MemoryMetadataStore):
    """Answers each read after a while."""

    reading = 0
    most = 0

    async def get(self, path: str) -> Versioned | None:
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            await asyncio.sleep(ANSWER_SECONDS)
            return await super().get(path)
        finally:
            self.reading -= 1


@pytest.mark.parametrize("kind", ["stored", "partitioned", "volatile"])
def test_many_topics_are_listed_without_waiting_for_each(kind: str) -> None:
    async def main(_: Simulation) -> None:
        store = FarStore(MemoryTree())
        resources = Resources(store, Runtime())
        await resources.initialize("c", {}, 4, renew=False)
        catalog = TopicCatalog(store, resources, NonPersistentTopics())
        domain = "non-persistent" if kind == "volatile" else "persistent"
        names = [f"{domain}://{NAMESPACE}/t{number:04d}" for number in range(TOPICS)]
        for number, name in enumerate(names):
            if kind == "stored":  # each third is being deleted
                state = TopicState.OPEN if number % 3 else TopicState.DELETING
                record = ManagedLedgerRecord("id", 0, state).encode()
                await store.put(managed_ledger_path(TopicName.parse(name)), record, ABSENT)
            else:
                await resources.partitioned_topics.create(TopicName.parse(name), 1)
        began = asyncio.get_running_loop().time()
        if kind == "stored":
            assert await catalog.list_topics(NAMESPACE) == [n for i, n in enumerate(names) if i % 3]
        else:
            listing = catalog.list_non_persistent_topics
            found = await (listing if kind == "volatile" else catalog.list_topics)(NAMESPACE)
            assert found == [f"{name}-partition-0" for name in names]
        took = asyncio.get_running_loop().time() - began
        assert took < TOPICS * ANSWER_SECONDS / 3
        assert store.most <= 64

    simulate(main)


def test_answers_come_in_order_and_no_more_are_asked_than_allowed() -> None:
    async def main(_: Simulation) -> None:
        asking = most = 0

        async def ask(thing: int) -> str:
            nonlocal asking, most
            asking += 1
            most = max(most, asking)
            await asyncio.sleep(100 - thing)
            asking -= 1
            return str(thing)

        found = [pair async for pair in answers_in_turns(ask, range(10), 4)]
        assert found == [(n, str(n)) for n in range(10)]
        assert most == 4
        assert [pair async for pair in answers_in_turns(ask, [], 4)] == []

    simulate(main)
