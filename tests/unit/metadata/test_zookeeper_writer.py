"""Commits on their way to ZooKeeper: what may share a multi."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from pulsark.metadata.changes import Check, Delete, Put
from pulsark.metadata.store import ABSENT, ANY_VERSION
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import TREE, Layout
from pulsark.metadata.zookeeper.nodes import Operation, Result
from pulsark.metadata.zookeeper.plan import Prune, Wanted
from pulsark.metadata.zookeeper.writer import Writer
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import MemoryZooKeeper

MULTIS_MAX = 20


class Client(MemoryZooKeeper):
    """A session that is not patient."""

    address = "memory"
    session_id = 7
    multis = 0

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        self.multis += 1
        assert self.multis < MULTIS_MAX, "the same is tried again and again"
        return await super().multi(operations)


async def writer_of(client: Client) -> Writer:
    session = cast("ZooKeeperClient", client)
    await find_or_create(session, "identity", create=True)
    return Writer(session, Layout(), 30.0, lambda _: None, lambda _: None)


COMES = Put("/a/b/c", b"", ABSENT)


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("comes", [COMES, Check(COMES.path, ABSENT)], ids=["put", "check"])
@pytest.mark.parametrize("goes", [Prune("/a/b"), Delete("/a/b", ANY_VERSION)], ids=type)
def test_a_node_goes_while_another_one_comes_below_it(
    goes: Wanted, comes: Wanted, first: bool
) -> None:
    """One multi with both is refused for ever, whatever is read again."""

    async def main(_: Simulation) -> None:
        client = Client()
        writer = await writer_of(client)
        if isinstance(goes, Delete):
            await writer.write((Put(goes.path, b"value", ABSENT),))
        else:
            await writer.write((Put("/a/b/last", b"", ABSENT),))
            await writer.write((Delete("/a/b/last", ANY_VERSION),))
        assert client.nodes[f"{TREE}/a/b"].children == 0
        commits = [(goes,), (comes,)]
        await asyncio.gather(*map(writer.write, commits if first else reversed(commits)))
        assert (f"{TREE}{COMES.path}" in client.nodes) is isinstance(comes, Put)

    simulate(main)
