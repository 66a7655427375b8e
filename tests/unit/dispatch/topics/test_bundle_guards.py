"""A broker that lost a bundle and does not know it takes nothing away from the next owner."""

from __future__ import annotations

import asyncio
import itertools
import json
from copy import copy
from dataclasses import dataclass

import pytest

from pulsark.dispatch.topics import bundle_claims
from pulsark.dispatch.topics.ownership import Ownership
from pulsark.errors import ClientError, LedgerFencedError, OwnershipLostError, PulsarkError
from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import bundle_epoch_path, bundle_owner_path
from pulsark.metadata.resources import Resources
from pulsark.runtime import Runtime
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import NAME, TOPIC, BrokerInMemory, Client, scenario
from tests.support.faulty_metadata import Fate, FaultyStore


async def next_owner(one: BrokerInMemory) -> BrokerInMemory:
    """Another broker over the same storage, after the store ended the session of ``one``.

    ``one`` has not heard of that: its store still takes what it writes, as one does on the network
    until the client hears of it.
    """
    one._tree.end_session(one.metadata)
    two = copy(one)
    two.metadata = MemoryMetadataStore(one._tree)
    two.broker = two._new_broker()
    await two.start()
    return two


async def works_on(broker: BrokerInMemory, entries: int) -> None:
    """The owner publishes and confirms, and has all of its entries."""
    await Client(broker).produce(TOPIC, 1)
    topic = broker.broker.topics.get_loaded(NAME)
    assert topic.ledger.entries == entries
    assert not topic.ledger.is_fenced


@scenario()
async def test_a_stale_owner_cannot_load_a_topic_again(broker) -> None:
    await works_on(broker, 1)
    await broker.broker.topics.unload(NAME)
    two = await next_owner(broker)
    await works_on(two, 2)
    with pytest.raises(PulsarkError):
        await broker.broker.topics.load(NAME)
    await works_on(two, 3)
    with pytest.raises(ClientError, match="owned by another broker"):
        await broker.broker.topics.load(NAME)
    await works_on(two, 4)


@scenario()
async def test_a_stale_owner_cannot_make_a_topic_or_delete_one(broker) -> None:
    await works_on(broker, 1)
    two = await next_owner(broker)
    await works_on(two, 2)
    for attempt in range(2):
        with pytest.raises(PulsarkError):
            await broker.broker.deletion.delete_topic(NAME, force=True)
        assert await two.broker.catalog.exists(NAME), attempt
        await works_on(two, 3 + attempt)


@scenario()
async def test_a_loaded_topic_of_a_stale_owner_gives_up_and_comes_to_no_new_ledger(broker) -> None:
    await works_on(broker, 1)
    stale = broker.broker.topics.get_loaded(NAME)
    two = await next_owner(broker)
    await works_on(two, 2)
    before = await two.metadata.children("/ledgers")
    with pytest.raises(LedgerFencedError):
        await stale.ledger.change_properties(lambda _: {"by": "the stale one"})
    with pytest.raises(LedgerFencedError):
        await stale.ledger.set_topic_epoch(7)
    assert stale.ledger.is_fenced
    assert await two.metadata.children("/ledgers") == before
    await works_on(two, 3)


@scenario(managedLedgerMaxEntriesPerLedger=2, managedLedgerMinLedgerRolloverTimeMinutes=0)
async def test_a_topic_whose_bundle_went_stops_where_its_ledger_ends(broker) -> None:
    """Nobody has fenced that yet; its entries are the next owner's."""
    client = Client(broker)
    await client.produce(TOPIC, 1)
    stale = broker.broker.topics.get_loaded(NAME)
    two = await next_owner(broker)
    await two.broker.ownership.guard(NAME)
    await client.publish(1)
    for _ in range(100):
        await asyncio.sleep(0.01)
    assert stale.ledger.is_fenced
    await works_on(two, 3)


@scenario()
async def test_a_topic_that_has_to_recover_its_ledger_stops_at_once(broker) -> None:
    await works_on(broker, 1)
    stale = broker.broker.topics.get_loaded(NAME)
    two = await next_owner(broker)
    await two.broker.ownership.guard(NAME)
    ledger_id = stale.ledger.record.ledgers[-1].ledger_id
    with pytest.raises(LedgerFencedError):
        await stale.ledger._manager.recover(ledger_id)
    await works_on(two, 2)


@scenario()
async def test_cursors_are_not_taken_back(broker) -> None:
    await works_on(broker, 1)
    two = await next_owner(broker)
    await works_on(two, 2)
    log = await two.broker.cursor_logs.of(NAME)
    broker.broker.cursor_logs._logs.clear()  # as after a failure of its log
    with pytest.raises(PulsarkError):
        await broker.broker.cursor_logs.of(NAME)
    assert log.failed is None
    await two.broker.topics.unload(NAME)
    await works_on(two, 3)


@scenario()
async def test_claims_are_counted_and_the_owner_is_named(broker) -> None:
    guard = await broker.broker.ownership.guard(NAME)
    found = await broker.metadata.get(guard.path)
    assert json.loads(found.value)["epoch"] == 1
    assert await broker.broker.ownership.guard(NAME) == guard
    two = await next_owner(broker)
    later = await two.broker.ownership.guard(NAME)
    assert later.path == guard.path
    assert later.expected_version > guard.expected_version
    found = await broker.metadata.get(guard.path)
    assert json.loads(found.value)["epoch"] == 2
    assert two.broker.ownership.owned() == broker.broker.ownership.owned()


def test_a_guarded_store_writes_only_while_its_guard_holds() -> None:
    async def scenario() -> None:
        store = MemoryMetadataStore(MemoryTree())
        version = await store.put("/guard", b"")
        lost: list[bool] = []
        guarded = GuardedMetadataStore(store, Check("/guard", version), lambda: lost.append(True))
        assert await guarded.put("/v", b"1") == 0
        assert await guarded.put("/v", b"2", 0) == 1
        await guarded.delete("/v", 1)
        assert lost == []
        await store.put("/guard", b"another's")
        with pytest.raises(OwnershipLostError):
            await guarded.put("/v", b"3")
        with pytest.raises(OwnershipLostError):
            await guarded.delete("/v")
        assert lost == [True] * len(lost)
        assert await store.children("/") == ["guard"]

    asyncio.run(scenario())


@dataclass
class HandClock:
    now: float = 0.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


def test_nothing_is_owned_while_the_session_may_be_over() -> None:
    clock = HandClock()

    async def scenario() -> None:
        store, runtime = MemoryMetadataStore(MemoryTree(), clock, 10.0), Runtime()
        resources = Resources(store, runtime)
        await resources.initialize("c", {})
        ownership, name = Ownership(store, resources, runtime), TopicName.parse(TOPIC)
        bundle = await ownership.own(name)
        clock.now += 6.9
        assert await ownership.own(name) == bundle
        clock.now += 0.2
        with pytest.raises(ClientError, match="may be another broker's"):
            await ownership.own(name)
        store._give_sign()
        assert await ownership.own(name) == bundle
        store.expire()
        assert ownership.owned() == []
        with pytest.raises(PulsarkError):
            await ownership.own(name)

    asyncio.run(scenario())


UNHEARD = (Fate.NEVER, Fate.UNHEARD, Fate.LATE)


@pytest.mark.parametrize("fates", list(itertools.product(UNHEARD, repeat=2)), ids=str)
def test_a_claim_that_nobody_answered_is_made_once(
    monkeypatch: pytest.MonkeyPatch, fates: tuple[Fate, ...]
) -> None:
    monkeypatch.setattr(bundle_claims, "_RETRY_SECONDS", 0)

    async def scenario() -> None:
        tree, runtime = MemoryTree(), Runtime()
        store = FaultyStore(tree)
        resources = Resources(store, runtime)
        await resources.initialize("c", {})
        one = Ownership(store, resources, runtime)
        store.fates.extend(fates)
        guard = await one.guard(TopicName.parse(TOPIC))
        (bundle,) = one.owned()
        assert guard.path == bundle_epoch_path(bundle)
        for _ in range(100):
            await asyncio.sleep(0)
        found = tree.get(guard.path)
        assert found is not None
        assert found.version == guard.expected_version
        assert json.loads(found.value)["epoch"] == 1
        assert tree.get(bundle_owner_path(bundle)) is not None
        other = Ownership(MemoryMetadataStore(tree), resources, runtime)
        with pytest.raises(ClientError, match="owned by another"):
            await other.own(TopicName.parse(TOPIC))

    asyncio.run(scenario())
