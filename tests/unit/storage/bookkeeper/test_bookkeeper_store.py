"""Ids and metadata of ledgers over ZooKeeper's nodes in memory: counters, lost answers, folders."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from pulsark.errors import BadVersionError, OutcomeUnknownError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.nodes import Node, Operation, Result
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ids import LedgerIds
from pulsark.storage.bookkeeper.ledger_store import BookKeeperCluster, BookKeeperLedgerStore
from pulsark.storage.bookkeeper.nodes import decode_node, new_node
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState
from pulsark.wire.bookkeeper.digests import DigestType, LedgerKey
from tests.sim.simulation import Simulation
from tests.support.faulty_metadata import Fate
from tests.support.ledgers import simulate, turns
from tests.support.memory_zookeeper import MemoryZooKeeper

FATES = list(itertools.product((Fate.NEVER, Fate.UNHEARD), repeat=2))


def metadata(ledger_id: int, *bookies: str) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id,
        LedgerConfig(3, 3, 2, owner="/o"),
        LedgerState.OPEN,
        (Ensemble(0, 0, bookies or ("a", "b", "c")),),
        17,
    )


def ids_of(server: MemoryZooKeeper) -> LedgerIds:
    return LedgerIds(cast("ZooKeeperClient", server), "/ledgers")


async def store_of(
    server: MemoryZooKeeper, keys: LedgerKeys | None = None
) -> BookKeeperLedgerStore:
    await server.make("/ledgers")
    client = cast("ZooKeeperClient", server)
    cluster = BookKeeperCluster(client, "/ledgers", ids_of(server), keys or LedgerKeys())
    return BookKeeperLedgerStore(cluster, MemoryMetadataStore(MemoryTree()))


def test_ids_are_counted_and_leave_no_nodes() -> None:
    async def main(_: Simulation) -> None:
        server = MemoryZooKeeper()
        first, second = ids_of(server), ids_of(server)
        assert [await first.new(), await second.new(), await first.new()] == [0, 1, 2]
        await turns()
        assert [p for p in server.nodes if "ID-" in p] == []

    simulate(main)


def test_ids_that_are_asked_for_together_are_given_together() -> None:
    class Counting(MemoryZooKeeper):
        multis = 0

        async def multi(self, operations: Sequence[Operation]) -> list[Result]:
            self.multis += 1
            return await super().multi(operations)

    async def main(_: Simulation) -> None:
        server = Counting()
        ids = ids_of(server)
        assert await ids.new() == 0
        await turns()
        before = server.multis
        asked = [asyncio.ensure_future(ids.new()) for _ in range(251)]
        asked.pop().cancel()
        assert await asyncio.gather(*asked) == [*range(1, 251)]
        await turns()
        assert server.multis - before == 6, "created, and deleted, a hundred at a time"
        assert [p for p in server.nodes if "ID-" in p] == []
        server.counters["/ledgers/idgen/ID-"] = 2**31 - 3
        found = await asyncio.gather(*(ids.new() for _ in range(4)))
        assert found == [2**31 - 3, 2**31 - 2, 1 << 32, (1 << 32) + 1]

    simulate(main)


@pytest.mark.parametrize("fates", FATES, ids=str)
def test_an_id_whose_answer_is_lost_is_nobodys(fates: tuple[Fate, ...]) -> None:
    async def main(_: Simulation) -> None:
        server = MemoryZooKeeper()
        ids = ids_of(server)
        assert await ids.new() == 0
        await turns()
        server.fates.extend(fates)
        assert await ids.new() == 1 + fates.count(Fate.UNHEARD)
        server.fates.extend([Fate.NEVER] * 10)
        with pytest.raises(OutcomeUnknownError):
            await ids.new()

    simulate(main)


@pytest.mark.parametrize("overflown", [2**31 - 1, -(2**31), -5])
def test_ids_go_on_above_31_bits(overflown: int) -> None:
    async def main(_: Simulation) -> None:
        server = MemoryZooKeeper()
        ids, others = ids_of(server), ids_of(server)
        assert await ids.new() == 0
        assert await others.new() == 1
        server.counters["/ledgers/idgen/ID-"] = overflown
        assert [await ids.new(), await ids.new()] == [1 << 32, (1 << 32) + 1]
        assert await others.new() == (1 << 32) + 2, "also for who has not noticed yet"
        assert await ids_of(server).new() == (1 << 32) + 3, "and for who comes later"
        server.counters["/ledgers/idgen-long/HOB-0000000001/ID-"] = overflown
        assert await ids.new() == 2 << 32
        assert await ids_of(server).new() == (2 << 32) + 1

    simulate(main)


def test_a_ledger_that_this_client_has_not_seen_yet_is_not_taken_for_none() -> None:
    """Another broker made it, and the server that is asked here lags behind."""

    class Lagging(MemoryZooKeeper):
        synced = False

        async def sync(self) -> None:
            await super().sync()
            self.synced = True

        async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
            found = await super().get(path, changed)
            return found if self.synced else None

    async def main(_: Simulation) -> None:
        server = Lagging()
        stored = await (await store_of(server)).create(metadata(7))
        assert await (await store_of(server)).get(7) == stored
        assert await (await store_of(server)).get(8) is None

    simulate(main)


@pytest.mark.parametrize("fates", FATES, ids=str)
def test_a_ledger_whose_answer_is_lost_is_known_again(fates: tuple[Fate, ...]) -> None:
    async def main(_: Simulation) -> None:
        server = MemoryZooKeeper()
        store, other = await store_of(server), await store_of(server)
        await store.create(metadata(6))  # so that there is a directory
        server.fates.extend(fates)
        stored = await store.create(metadata(7))
        assert await other.get(7) == stored
        server.fates.extend(fates)
        closed = await store.update(stored, decisions.close(3, 4))
        assert await other.get(7) == closed
        assert closed.version == 1

    simulate(main)


def test_the_same_ledger_of_another_client_is_not_taken_for_ours() -> None:
    async def main(_: Simulation) -> None:
        server = MemoryZooKeeper()
        store, other = await store_of(server), await store_of(server)
        theirs = await other.create(metadata(7))
        server.fates.append(Fate.NEVER)
        with pytest.raises(BadVersionError):
            await store.create(metadata(7))
        assert await other.get(7) == theirs

    simulate(main)


def test_a_change_keeps_what_others_wrote_into_the_node() -> None:
    async def main(_: Simulation) -> None:
        server = MemoryZooKeeper()
        store, keys = await store_of(server), LedgerKeys()
        key = LedgerKey(DigestType.HMAC, b"secret")
        node = new_node(metadata(7), key, 5)
        node.message.customMetadata.add(key="theirs", value=b"kept")
        await server.make("/ledgers/00/0000")
        await server.create("/ledgers/00/0000/L0007", node.encode())
        store = await store_of(server, keys)
        stored = await store.get(7)
        assert stored is not None
        assert keys.of(7).master_key == key.master_key
        assert keys.of(8) is keys.usual
        await store.update(stored, decisions.close(3, 4))
        after = decode_node(server.nodes["/ledgers/00/0000/L0007"].data)
        assert after.message.customMetadata == node.message.customMetadata
        assert (after.token, after.message.password) == (5, b"secret")
        assert (after.message.lastEntryId, after.message.length) == (3, 4)

    simulate(main)


def test_directories_come_with_their_first_ledger_and_go_with_the_last() -> None:
    async def main(_: Simulation) -> None:
        server = MemoryZooKeeper()
        store = await store_of(server)
        before = set(server.nodes)
        for ledger_id in (7, 8, 10_007, 2**31 + 5):
            await store.create(metadata(ledger_id))
        assert "/ledgers/00/0001/L0007" in server.nodes
        assert "/ledgers/000/0000/0021/4748/L3653" in server.nodes
        await store.delete(7)
        await store.delete(7)
        assert "/ledgers/00/0000/L0008" in server.nodes
        await store.delete(8)
        assert "/ledgers/00/0000" not in server.nodes
        assert "/ledgers/00" in server.nodes
        await store.delete(10_007)
        await store.delete(2**31 + 5)
        assert set(server.nodes) == before

    simulate(main)
