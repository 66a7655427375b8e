"""Ledgers in BookKeeper's nodes are written in one commit with the guard of their bundle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from pulsark.errors import BadVersionError, MetadataRefusedError, OwnershipLostError
from pulsark.metadata.based_values import encode
from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.zookeeper.guard_nodes import GuardNodes
from pulsark.metadata.zookeeper.layout import INSTANCE, Layout, part_node, part_of
from pulsark.metadata.zookeeper.nodes import Node, Operation, Result
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.guarded_writes import AT_ONCE, BYTES_AT_ONCE
from pulsark.storage.bookkeeper.ids import LedgerIds
from pulsark.storage.bookkeeper.ledger_store import BookKeeperCluster, BookKeeperLedgerStore
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState
from tests.sim.simulation import Simulation
from tests.support.faulty_metadata import Fate
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper

ROOT = "/clusters/one"
GUARD = "/bundle-epochs/b"
NODE = ROOT + Layout().node(GUARD)
PART = ROOT + part_node(part_of(Layout().node(GUARD)))
OPENED = LedgerMetadata(
    7, LedgerConfig(3, 3, 2, owner="/o"), LedgerState.OPEN, (Ensemble(0, 0, ("a", "b", "c")),), 17
)


@dataclass
class Server(MemoryZooKeeper):
    """Somebody may be quicker than a multi that is on its way."""

    quicker: Callable[[], Awaitable[None]] | None = None
    multis: int = 0
    behind: dict[str, Node] | None = None
    """What this session's server knows until it is asked to catch up."""

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        found = await super().get(path, changed)
        return found if self.behind is None else self.behind.get(path)

    async def sync(self) -> None:
        await super().sync()
        self.behind = None

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        self.multis += 1
        quicker, self.quicker = self.quicker, None
        if quicker is not None:
            await quicker()
        return await super().multi(operations)


class World:
    """A metadata store with a guard, which ZooKeeper has at base 100, and the ledgers beside it."""

    def __init__(self) -> None:
        self.server = Server()
        self.metadata = MemoryMetadataStore(MemoryTree())
        self.lost: list[bool] = []

    async def start(self) -> BookKeeperLedgerStore:
        instance = json.dumps({"version": 1, "identity": "x", "directories": 256}).encode()
        for path, data in (
            ("/ledgers", b""), (ROOT + INSTANCE, instance), (PART, b"0"), (NODE, self.value(100)),
        ):  # fmt: skip
            await self.server.make(path)
            await self.server.set(path, data)
        for _ in range(101):
            version = await self.metadata.put(GUARD, b"")
        assert version == 100 + self.server.nodes[NODE].version - 1
        guard = Check(GUARD, await self.metadata.put(GUARD, b""))
        view = GuardedMetadataStore(self.metadata, guard, lambda: self.lost.append(True))
        guards = await GuardNodes.find(self.server, ROOT, "x")
        assert guards is not None
        ids = LedgerIds(self.server, "/ledgers")
        cluster = BookKeeperCluster(self.server, "/ledgers", ids, LedgerKeys(), guards)
        return BookKeeperLedgerStore(cluster, view)

    def value(self, base: int) -> bytes:
        return encode(GUARD, b"", base)

    async def claim(self) -> None:
        """Another broker claims the bundle."""
        await self.metadata.put(GUARD, b"another")
        await self.server.set(NODE, self.value(100))

    async def claim_anew(self, base: int = 1000) -> None:
        """The same after the bundle was gone: the node has the version that it had."""
        await self.metadata.put(GUARD, b"another")
        await self.server.delete(NODE)
        await self.server.set(PART, b"%d" % base)
        await self.server.create(NODE, self.value(base))
        await self.server.set(NODE, self.value(base))

    async def delete_something(self) -> None:
        """A deletion in the same part of the tree."""
        await self.server.set(PART, b"50")

    async def is_claimed_anew_here(self) -> None:
        """The bundle was gone and is this process's again, but not every server knows it."""
        self.server.behind = dict(self.server.nodes)
        found = await self.metadata.get(GUARD)
        assert found is not None
        await self.server.delete(NODE)
        await self.server.create(NODE, self.value(found.version))


def run(scenario: Callable[[World, BookKeeperLedgerStore], Awaitable[None]]) -> None:
    async def main(_: Simulation) -> None:
        world = World()
        await scenario(world, await world.start())

    simulate(main)


def test_a_server_that_is_behind_does_not_make_a_broker_lose_its_bundle() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await world.is_claimed_anew_here()
        await ledgers.create(OPENED)
        assert world.lost == []
        assert await ledgers.get(7) is not None

    run(scenario)


@pytest.mark.parametrize("known", [True, False], ids=["checks known", "checks not known"])
@pytest.mark.parametrize("how", ["claim", "claim_anew"])
@pytest.mark.parametrize("what", ["create", "update", "delete"])
def test_a_new_owner_that_is_quicker_has_nothing_written_past_it(
    what: str, how: str, known: bool
) -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        stored = await ledgers.create(OPENED)
        if what == "create":
            await ledgers.delete(7)
        if not known:
            ledgers = ledgers.over(ledgers._metadata)
        before = {p: node for p, node in world.server.nodes.items() if p.startswith("/ledgers")}
        world.server.quicker = getattr(world, how)
        with pytest.raises(OwnershipLostError):
            await {
                "create": lambda: ledgers.create(OPENED),
                "update": lambda: ledgers.update(stored, decisions.start_recovery),
                "delete": lambda: ledgers.delete(7),
            }[what]()
        assert world.lost
        assert before == {
            p: node for p, node in world.server.nodes.items() if p.startswith("/ledgers")
        }

    run(scenario)


@pytest.mark.parametrize("base", [102, 1000, 1 << 33], ids=["one above", "above", "far above"])
def test_who_looks_only_after_the_bundle_was_made_anew_writes_nothing(base: int) -> None:
    """Its guard is below the node's first version, and ZooKeeper's -1 is any version."""

    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await world.claim_anew(base)
        with pytest.raises(OwnershipLostError):
            await ledgers.create(OPENED)
        assert world.lost

    run(scenario)


def test_deletions_of_others_only_let_it_look_again() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        stored = await ledgers.create(OPENED)
        for decision in (decisions.start_recovery, decisions.end_recovery(
            OPENED, OPENED.ensembles, 3, 4
        )):  # fmt: skip
            world.server.quicker = world.delete_something
            stored = await ledgers.update(stored, decision)
        assert stored.metadata.is_closed
        assert not world.lost

    run(scenario)


def test_an_owner_whose_guard_zookeeper_does_not_have_gives_up() -> None:
    """As with a copy of the metadata store: nothing says that the bundle is lost."""

    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await world.server.delete(NODE)
        with pytest.raises(MetadataRefusedError) as caught:
            await ledgers.create(OPENED)
        assert not isinstance(caught.value, OwnershipLostError)
        assert not world.lost

    run(scenario)


def test_another_store_has_no_guards_here() -> None:
    async def scenario(world: World, _: BookKeeperLedgerStore) -> None:
        assert await GuardNodes.find(world.server, ROOT, "y") is None
        assert await GuardNodes.find(world.server, "/clusters/two", "x") is None

    run(scenario)


def opened(ledger_id: int) -> LedgerMetadata:
    return replace(OPENED, ledger_id=ledger_id)


def test_what_is_written_in_one_turn_is_one_commit() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await ledgers.create(opened(1))
        before = world.server.multis
        stored = await asyncio.gather(*(ledgers.create(opened(n)) for n in range(2, 52)))
        assert world.server.multis == before + 1
        closed = await asyncio.gather(
            *(ledgers.update(each, decisions.close(3, 4)) for each in stored)
        )
        assert world.server.multis == before + 2
        assert [await ledgers.get(n) for n in range(2, 52)] == closed
        await asyncio.gather(*(ledgers.create(opened(n)) for n in range(52, 52 + AT_ONCE + 1)))
        assert world.server.multis == before + 4

    run(scenario)


def test_very_large_nodes_are_not_written_together() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await ledgers.create(opened(1))
        before = world.server.multis
        large = LedgerConfig(3, 3, 2, owner="/" + "o" * BYTES_AT_ONCE)
        await asyncio.gather(
            *(ledgers.create(replace(opened(n), config=large)) for n in range(2, 6))
        )
        assert world.server.multis == before + 4

    run(scenario)


def test_what_is_refused_keeps_nothing_else_from_being_written() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        first = await ledgers.create(opened(1))
        closed = await ledgers.update(first, decisions.close(3, 4))
        results = await asyncio.gather(
            *(ledgers.create(opened(n)) for n in (2, 1, 3)),
            ledgers.put(opened(1), first),
            ledgers.create(opened(4)),
            return_exceptions=True,
        )
        assert [isinstance(each, BadVersionError) for each in results] == [
            False, True, False, True, False,
        ]  # fmt: skip
        assert results[0::2] == [await ledgers.get(n) for n in (2, 3, 4)]
        assert await ledgers.get(1) == closed

    run(scenario)


def test_the_first_ledgers_of_a_directory_are_written_together() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        before = world.server.multis
        stored = await asyncio.gather(*(ledgers.create(opened(n)) for n in range(50)))
        assert world.server.multis - before <= 3
        assert [await ledgers.get(n) for n in range(50)] == stored

    run(scenario)


@pytest.mark.parametrize("fate", [Fate.NEVER, Fate.UNHEARD])
def test_all_that_a_lost_answer_was_about_is_looked_at_again(fate: Fate) -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await ledgers.create(opened(1))
        world.server.fates.append(fate)
        stored = await asyncio.gather(*(ledgers.create(opened(n)) for n in range(2, 9)))
        assert [await ledgers.get(n) for n in range(2, 9)] == stored

    run(scenario)


def test_nothing_is_written_together_past_a_new_owner() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await ledgers.create(opened(1))
        world.server.quicker = world.claim
        results = await asyncio.gather(
            *(ledgers.create(opened(n)) for n in range(2, 9)), return_exceptions=True
        )
        assert {type(each) for each in results} == {OwnershipLostError}
        assert [await ledgers.get(n) for n in range(2, 9)] == [None] * 7

    run(scenario)


def test_who_waits_no_longer_has_nothing_written() -> None:
    async def scenario(world: World, ledgers: BookKeeperLedgerStore) -> None:
        await ledgers.create(opened(1))
        gone = asyncio.ensure_future(ledgers.create(opened(2)))
        stays = asyncio.ensure_future(ledgers.create(opened(3)))
        await asyncio.sleep(0)
        gone.cancel()
        await stays
        assert await ledgers.get(2) is None

    run(scenario)
