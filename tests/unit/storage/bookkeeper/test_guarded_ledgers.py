"""Ledgers in BookKeeper's nodes are written in one commit with the guard of their bundle."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

import pytest

from pulsark.errors import MetadataRefusedError, OwnershipLostError
from pulsark.metadata.based_values import encode
from pulsark.metadata.changes import Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.zookeeper.guard_nodes import GuardNodes
from pulsark.metadata.zookeeper.layout import INSTANCE, Layout, part_node, part_of
from pulsark.metadata.zookeeper.nodes import Operation, Result
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ids import LedgerIds
from pulsark.storage.bookkeeper.ledger_store import BookKeeperCluster, BookKeeperLedgerStore
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper

ROOT = "/clusters/one"
GUARD = "/bundle-epochs/b"
NODE = ROOT + Layout().node(GUARD)
PART = ROOT + part_node(part_of(Layout().node(GUARD)))
OPENED = LedgerMetadata(
    7, LedgerConfig(3, 3, 2, owner="/o"), LedgerState.OPEN, (Ensemble(0, 0, ("a", "b", "c")),), 17
)


class Server(MemoryZooKeeper):
    """Somebody may be quicker than a multi that is on its way."""

    quicker: Callable[[], Awaitable[None]] | None = None

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
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

    async def claim_anew(self) -> None:
        """The same after the bundle was gone: the node has the version that it had."""
        await self.metadata.put(GUARD, b"another")
        await self.server.delete(NODE)
        await self.server.set(PART, b"1000")
        await self.server.create(NODE, self.value(1000))
        await self.server.set(NODE, self.value(1000))

    async def delete_something(self) -> None:
        """A deletion in the same part of the tree."""
        await self.server.set(PART, b"50")


def run(scenario: Callable[[World, BookKeeperLedgerStore], Awaitable[None]]) -> None:
    async def main(_: Simulation) -> None:
        world = World()
        await scenario(world, await world.start())

    simulate(main)


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
