"""A bundle becomes several: what its topics and cursors are, who has the parts, what is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

import pytest

from pulsark.dispatch.topics.bundles import Covered
from pulsark.errors import (
    ClientError,
    MetadataRefusedError,
    PulsarkError,
    ServerError,
    StorageError,
)
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import (
    bundle_epoch_path,
    bundle_owner_path,
    cursors_path,
    policies_path,
)
from pulsark.metadata.two_stores import TwoStores
from pulsark.storage.cursor.log import CursorLog
from pulsark.wire.topic_name import TopicName
from tests.sim.metadata import paths_of
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.faulty_metadata import Fate, FaultyStore

NAMESPACE = "public/default"
WHOLE = f"{NAMESPACE}/0x00000000_0x40000000"
HALVES = [f"{NAMESPACE}/0x00000000_0x20000000", f"{NAMESPACE}/0x20000000_0x40000000"]
MIDDLE = [0x20000000]
NAMES = [TopicName.parse(f"persistent://{NAMESPACE}/t{number}") for number in range(200)]
LEFT, RIGHT = (next(name for name in NAMES if name in Covered(half)) for half in HALVES)


async def busy(broker: BrokerInMemory) -> Client:
    """A client with two entries in a topic of each half; of each it has acknowledged the first."""
    client = Client(broker)
    for number, name in enumerate((LEFT, RIGHT), 1):
        first, _ = await client.produce(str(name), 2, producer_id=number)
        assert await client.subscribe(str(name), consumer_id=number) == 0
        client.send(client.ack_command(first, consumer_id=number))
    await asyncio.sleep(2)  # acknowledgements are written within the flush interval
    return client


async def check_all_is_there(brokers: Sequence[BrokerInMemory]) -> None:
    """Who finds a topic gets what was not acknowledged of it, and nothing else."""
    for name in (LEFT, RIGHT):
        found = await brokers[0].broker.lookup.find(name)
        (there,) = [b for b in brokers if b.broker.registry.own_id == found.broker_id]
        client = Client(there)
        assert await client.subscribe(str(name)) == 0
        assert len(await client.deliveries()) == 1
        client.hang_up()


def boundaries(broker: BrokerInMemory) -> list[str]:
    found = broker._tree.get(policies_path(NAMESPACE))
    edges: list[str] = json.loads(found.value)["boundaries"]
    return edges


def ledgers_of_cursors(broker: BrokerInMemory) -> dict[int, str]:
    """Those that exist, with the path that each was made for."""
    found = {}
    for child in broker._tree.children("/ledgers"):
        record = json.loads(broker._tree.get(f"/ledgers/{child}").value)
        if record["owner"].startswith("/cursors/"):
            found[int(child)] = record["owner"]
    return found


@scenario(cursorHistoryMinutes=0)
async def test_the_halves_are_this_brokers_with_all_that_was_there(broker) -> None:
    client = await busy(broker)
    one = broker.broker
    assert await one.bundle_split.split(WHOLE, MIDDLE, keep=True) == HALVES
    closed = [await client.take(Command.CLOSE_PRODUCER) for _ in range(2)]
    assert {command.close_producer.assignedBrokerServiceUrl for command in closed} == {
        "pulsar://b:6650"
    }
    assert boundaries(broker)[:3] == ["0x00000000", "0x20000000", "0x40000000"]
    assert one.ownership.owned() == HALVES
    assert all(one.ownership.has(half) for half in HALVES)
    assert one.bundle_split.done == 1
    client.hang_up()
    await check_all_is_there([broker])
    assert one.ownership.owned() == HALVES
    # Of the whole nothing is left but that it was split.
    assert broker._tree.get(bundle_owner_path(WHOLE)) is None
    assert broker._tree.get(cursors_path(WHOLE)) is None
    for half, name in zip(HALVES, (LEFT, RIGHT), strict=True):
        assert set(ledgers_of_cursors(broker).values()) == {cursors_path(h) for h in HALVES}
        log = await one.cursor_logs.of(name)
        topic_ids = [one.topics.get_loaded(each).ledger.topic_id for each in (LEFT, RIGHT)]
        expected = [["s"] if half == there else [] for there in HALVES]
        assert [log.subscriptions(topic_id) for topic_id in topic_ids] == expected


@scenario()
async def test_where_two_stores_would_have_to_do_it_nothing_is_closed(broker, monkeypatch) -> None:
    """The broker would try it again and again."""
    client = await busy(broker)
    one = broker.broker
    both = TwoStores(broker.metadata, MemoryMetadataStore(broker._tree))
    monkeypatch.setattr(one.bundle_split, "_metadata", both)
    monkeypatch.setattr(one.storage, "_metadata", both)
    one.storage._views.clear()
    before = one.topics.loaded()
    with pytest.raises(MetadataRefusedError, match="no commit is made in two stores"):
        await one.bundle_split.split(WHOLE, MIDDLE, keep=True)
    assert one.topics.loaded() == before
    assert not any(topic.closed for topic in before)
    assert one.ownership.owned() == [WHOLE]
    client.hang_up()


@scenario()
async def test_halves_that_are_not_kept_are_whose_is_chosen(broker) -> None:
    client = await busy(broker)
    two = await broker.another()
    await broker.broker.bundle_split.split(WHOLE, MIDDLE, keep=False)
    assert broker.broker.ownership.owned() == []
    assert not any(broker._tree.get(bundle_owner_path(half)) for half in HALVES)
    client.hang_up()
    await two.broker.ownership.claim(HALVES[1])
    await check_all_is_there([broker, two])


@scenario()
async def test_nobody_claims_what_was_split(broker) -> None:
    """Else a topic would be in two bundles, with two owners that no guard keeps apart."""
    two = await broker.another()
    await broker.broker.bundle_split.split(WHOLE, MIDDLE, keep=True)
    for each in (broker, two):
        with pytest.raises(ClientError, match="was split") as refused:
            await each.broker.ownership.claim(WHOLE)
        assert refused.value.code is ServerError.ServiceNotReady
    with pytest.raises(ClientError, match="was split"):
        await broker.broker.bundle_split.split(WHOLE, MIDDLE, keep=True)


@scenario()
async def test_a_claim_that_began_before_the_split_is_not_made(broker) -> None:
    """At whatever step of the claim the split is made."""
    refused = set()
    for steps in range(0, 120, 4):
        await broker.broker.resources.namespaces.create(f"public/n{steps}")
        whole = f"public/n{steps}/0x40000000_0x80000000"
        two = await broker.another()
        await broker.broker.ownership.claim(whole)
        splitting = asyncio.create_task(
            broker.broker.bundle_split.split(whole, [0x50000000], keep=False)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        claiming = asyncio.create_task(two.broker.ownership.claim(whole))
        await splitting
        (found,) = await asyncio.gather(claiming, return_exceptions=True)
        assert isinstance(found, ClientError)
        refused.add("was split" in str(found))
        assert broker._tree.get(bundle_owner_path(whole)) is None
        await two.broker.close()
        await two.metadata.close()
    assert refused == {True, False}


@pytest.mark.parametrize("keep", [True, False])
@scenario()
async def test_a_later_namespace_of_the_name_has_the_bundle_again(broker, keep) -> None:
    client = await busy(broker)
    one = broker.broker
    await one.bundle_split.split(WHOLE, MIDDLE, keep=True)
    client.hang_up()
    stale = one.ownership.guard_of(HALVES[0])
    for name in (LEFT, RIGHT):
        await one.deletion.delete_topic(name, force=True)
    await one.namespace_deletion.delete(NAMESPACE, force=True)
    await one.resources.namespaces.create(NAMESPACE)
    client = await busy(broker)
    assert one.ownership.has(WHOLE)
    await one.bundle_split.split(WHOLE, MIDDLE, keep=keep)
    client.hang_up()
    assert one.ownership.owned() == (HALVES if keep else [])
    assert await one.ownership.claim(HALVES[0]) > stale.expected_version
    await check_all_is_there([broker])


class ShakySplit(FaultyStore):
    """The first commits of a split have fates; nothing else has."""

    def __init__(self, broker: BrokerInMemory) -> None:
        super().__init__(broker._tree)
        self.of_splits: list[Fate] = []

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        if policies_path(NAMESPACE) in paths_of(changes) and len(changes) > 3 and self.of_splits:
            self.fates.append(self.of_splits.pop(0))
        return await super().commit(changes)


async def over_shaky_store(broker: BrokerInMemory) -> ShakySplit:
    await broker.broker.close()
    await broker.metadata.close()
    store = broker.metadata = ShakySplit(broker)
    broker.broker = broker._new_broker()
    await broker.start()
    return store


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    "fates",
    [[Fate.NEVER], [Fate.UNHEARD], [Fate.LATE], [Fate.NEVER, Fate.LATE, Fate.UNHEARD]],
    ids=str,
)
@scenario()
async def test_a_split_that_is_not_answered_is_made_once(broker, fates, keep) -> None:
    store = await over_shaky_store(broker)
    client = await busy(broker)
    store.of_splits = list(fates)
    assert await broker.broker.bundle_split.split(WHOLE, MIDDLE, keep=keep) == HALVES
    client.hang_up()
    assert broker.broker.ownership.owned() == (HALVES if keep else [])
    counted = [json.loads(broker._tree.get(bundle_epoch_path(half)).value) for half in HALVES]
    assert [each["epoch"] for each in counted] == [1, 1]
    await check_all_is_there([broker])
    assert len(boundaries(broker)) == 6


async def made_unheard(
    broker: BrokerInMemory, store: ShakySplit, *, keep: bool
) -> asyncio.Future[list[str]]:
    """A split that is made, of which the broker does not know what became of it."""
    store.of_splits = [Fate.UNHEARD]
    splitting = asyncio.ensure_future(broker.broker.bundle_split.split(WHOLE, MIDDLE, keep=keep))
    while broker._tree.get(bundle_owner_path(WHOLE)) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return splitting


@scenario()
async def test_what_is_claimed_before_the_answer_comes_stays_this_brokers(broker) -> None:
    """The split is made, and known to clients, while this broker does not know what became of it.

    The halves are nobody's then. A client that comes for one has it claimed here, and its topic.
    """
    store = await over_shaky_store(broker)
    client = await busy(broker)
    one = broker.broker
    splitting = await made_unheard(broker, store, keep=False)
    client.hang_up()
    topic = await one.topics.load(RIGHT)
    assert not splitting.done()
    await splitting
    assert one.ownership.owned() == [HALVES[1]]
    assert await one.topics.load(RIGHT) is topic
    assert await one.bundle_release.release(HALVES[1])
    assert topic.closed


@scenario()
async def test_what_is_given_up_before_the_answer_comes_is_nobodys_until_it_is_claimed(
    broker,
) -> None:
    """A request found a half to be here, and a policy that was set just now had it given up."""
    store = await over_shaky_store(broker)
    client = await busy(broker)
    two = await broker.another()
    one = broker.broker
    splitting = await made_unheard(broker, store, keep=True)
    client.hang_up()
    await one.ownership.claim(HALVES[1])
    await one.bundle_release.release(HALVES[1])
    assert not splitting.done()
    await splitting
    with suppress(ClientError):
        await two.broker.ownership.claim(HALVES[1])
    assert one.ownership.has(HALVES[0])
    assert one.ownership.has(HALVES[1]) != two.broker.ownership.has(HALVES[1])


@scenario(cursorHistoryMinutes=0)
async def test_a_split_that_is_never_answered_may_be_made_and_nothing_is_lost(broker) -> None:
    store = await over_shaky_store(broker)
    client = await busy(broker)
    store.of_splits = [Fate.NEVER] * 20
    with pytest.raises(PulsarkError, match="may be split or not"):
        await broker.broker.bundle_split.split(WHOLE, MIDDLE, keep=True)
    client.hang_up()
    store.of_splits = []
    assert broker.broker.ownership.owned() == []
    assert len(boundaries(broker)) == 5
    await check_all_is_there([broker])
    # What was written for the halves is deleted by the next owner of the whole.
    assert set(ledgers_of_cursors(broker).values()) == {cursors_path(WHOLE)}


@scenario()
async def test_who_lost_the_bundle_splits_nothing(broker) -> None:
    """It has not heard of it: the version of the claim tells."""
    client = await busy(broker)
    for moment in range(3):
        one = broker
        split = one.broker.bundle_split
        two = await one.another()
        reached, go_on = asyncio.Event(), asyncio.Event()
        where = [(split, "_parts_of_cursors"), (split, "_commit"), (split, "_changes")][moment]
        original = getattr(*where)

        async def slow(*given, original=original, reached=reached, go_on=go_on):
            reached.set()
            await go_on.wait()
            return await original(*given)

        setattr(*where, slow)
        splitting = asyncio.create_task(split.split(WHOLE, MIDDLE, keep=True))
        await reached.wait()
        one._tree.end_session(one.metadata)
        await two.broker.ownership.claim(WHOLE)
        go_on.set()
        with pytest.raises(PulsarkError):
            await splitting
        client.hang_up()
        assert len(boundaries(broker)) == 5
        assert broker._tree.get(cursors_path(WHOLE)) is not None
        await check_all_is_there([two])
        broker = two


@scenario()
async def test_changes_of_policies_and_splits_do_not_undo_each_other(broker) -> None:
    one = broker.broker
    await busy(broker)
    original = one.bundle_split._changes
    changed = []

    async def slow(*given):
        found = await original(*given)
        if len(changed) < 3:
            changed.append(len(changed))
            await one.resources.namespaces.update(
                NAMESPACE,
                lambda old: type(old)(
                    old.name,
                    old.bundle_boundaries,
                    old.replication_clusters,
                    {
                        **old.policies,
                        "retention_policies": {"retentionTimeInMinutes": len(changed)},
                    },
                ),
            )
        return found

    one.bundle_split._changes = slow
    await one.bundle_split.split(WHOLE, MIDDLE, keep=True)
    found = await one.resources.namespaces.get(NAMESPACE)
    assert found.policies["retention_policies"] == {"retentionTimeInMinutes": 3}
    assert len(boundaries(broker)) == 6


@scenario()
async def test_a_bundle_that_is_leaving_is_not_split_and_one_that_splits_does_not_leave(
    broker,
) -> None:
    await busy(broker)
    one = broker.broker
    releasing = asyncio.create_task(one.bundle_release.release(WHOLE))
    await asyncio.sleep(0)
    with pytest.raises(ClientError):
        await one.bundle_split.split(WHOLE, MIDDLE, keep=True)
    assert await releasing
    commit, reached = one.bundle_split._commit, asyncio.Event()

    async def noted(*given):
        reached.set()
        await asyncio.sleep(1)
        return await commit(*given)

    one.bundle_split._commit = noted
    splitting = asyncio.create_task(one.bundle_split.split(WHOLE, MIDDLE, keep=True))
    await reached.wait()
    splitting.cancel()  # whoever asked is gone
    assert await one.bundle_release.release(WHOLE)
    assert one.ownership.owned() == HALVES


@scenario()
async def test_a_bundle_that_does_not_close_in_order_is_not_split(broker, monkeypatch) -> None:
    client = await busy(broker)
    one = broker.broker
    monkeypatch.setattr("pulsark.dispatch.topics.bundle_release.CLOSING_SECONDS", 1.0)
    async with one.topics.ending(LEFT):
        with pytest.raises(PulsarkError, match="not closed in order"):
            await one.bundle_split.split(WHOLE, MIDDLE, keep=True)
    client.hang_up()
    await one.bundle_release.settled()
    assert len(boundaries(broker)) == 5
    await check_all_is_there([broker])


@scenario()
async def test_a_bundle_whose_cursors_are_not_all_written_is_not_split(broker) -> None:
    """The log may have stopped before the last acknowledgements: the halves would lack them."""
    client = await busy(broker)
    one = broker.broker
    log = await one.cursor_logs.of_bundle(WHOLE)
    close_of = one.cursor_logs.close_of

    async def stopped_first(bundle: str) -> CursorLog | None:
        if bundle == WHOLE:
            log._writer.stop(StorageError("the bookies are away"))
        return await close_of(bundle)

    one.cursor_logs.close_of = stopped_first
    with pytest.raises(PulsarkError, match="not closed in order"):
        await one.bundle_split.split(WHOLE, MIDDLE, keep=True)
    client.hang_up()
    assert len(boundaries(broker)) == 5
    await check_all_is_there([broker])


@scenario()
async def test_a_question_for_cursors_claims_no_bundle(broker) -> None:
    assert await broker.broker.cursor_logs.mark_deletes(LEFT, "id") is None
    assert broker.broker.ownership.owned() == []
    await broker.broker.ownership.claim(WHOLE)
    assert await broker.broker.cursor_logs.mark_deletes(LEFT, "id") == {}


@scenario(cursorHistoryMinutes=60)
async def test_the_past_is_known_in_both_halves(broker) -> None:
    client = await busy(broker)
    one = broker.broker
    before = broker._runtime.clock.now_ms()
    await asyncio.sleep(1)
    await one.bundle_split.split(WHOLE, MIDDLE, keep=True)
    client.hang_up()
    await asyncio.sleep(1)
    for name in (LEFT, RIGHT):
        topic = await one.topics.load(name)
        log = await one.cursor_logs.of(name)
        (then,) = await log.cursors_at(topic.ledger.topic_id, before)
        assert then.acked.mark_delete.entry_id == 0
        kinds = [change.kind async for change in log.changes(topic.ledger.topic_id)]
        assert "acknowledged" in kinds


@scenario()
async def test_where_a_bundle_is_cut(broker) -> None:
    await busy(broker)
    split = broker.broker.bundle_split
    assert await split.edges(WHOLE, "range_equally_divide") == MIDDLE
    (edge,) = await split.edges(WHOLE, "topic_count_equally_divide")
    parts = await split.split(WHOLE, [edge], keep=True)
    assert [LEFT in Covered(part) for part in parts] == [True, False]
    assert [RIGHT in Covered(part) for part in parts] == [False, True]
    assert await split.edges(parts[0], "topic_count_equally_divide") == []
    at = await split.edges(parts[1], "specified_positions_divide", [edge, edge + 9, edge + 4, 1])
    assert at == [edge + 4, edge + 9]
    assert len(await split.split(parts[1], at, keep=True)) == 3
    assert len(broker.broker.ownership.owned()) == 4
