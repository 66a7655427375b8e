"""Commits on their way to ZooKeeper: what may share a multi."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsark.errors import BadVersionError, MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.store import ABSENT, ANY_VERSION
from pulsark.metadata.zookeeper import facts
from pulsark.metadata.zookeeper.change_queue import telling
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import TREE, Layout, part_of
from pulsark.metadata.zookeeper.nodes import Operation, Result
from pulsark.metadata.zookeeper.plan import Prune, Wanted
from pulsark.metadata.zookeeper.writer import Writer
from tests.sim.simulation import Simulation
from tests.support.impatient_zookeeper import ImpatientZooKeeper
from tests.support.ledgers import simulate
from tests.support.memory_zookeeper import new_node


async def writer_of(client: ImpatientZooKeeper) -> Writer:
    session = cast("ZooKeeperClient", client)
    await find_or_create(session, "identity", create=True)
    return Writer(session, Layout(), 30.0, lambda _: None, lambda *_: None)


COMES = Put("/a/b/c", b"", ABSENT)


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("comes", [COMES, Check(COMES.path, ABSENT)], ids=["put", "check"])
@pytest.mark.parametrize("goes", [Prune("/a/b"), Delete("/a/b", ANY_VERSION)], ids=type)
def test_a_node_goes_while_another_one_comes_below_it(
    goes: Wanted, comes: Wanted, first: bool
) -> None:
    """One multi with both is refused for ever, whatever is read again."""

    async def main(_: Simulation) -> None:
        client = ImpatientZooKeeper()
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


@pytest.mark.parametrize("first", ["above", "below"])
@pytest.mark.parametrize("at_once", [True, False], ids=["commit", "commits"])
@pytest.mark.parametrize("below", [COMES, Check(COMES.path, ABSENT)], ids=["put", "check"])
@pytest.mark.parametrize("path", ["/a", "/a/b"])
@pytest.mark.parametrize("kind", [Put, Check])
def test_a_node_comes_above_one_that_makes_it_as_its_parent(
    kind: type[Put | Check], path: str, below: Change, at_once: bool, first: str
) -> None:
    """Neither is there before."""

    async def main(_: Simulation) -> None:
        client = ImpatientZooKeeper()
        writer = await writer_of(client)
        above = Put(path, b"value", ABSENT) if kind is Put else Check(path, ABSENT)
        changes = (above, below) if first == "above" else (below, above)
        commits = [changes] if at_once else [(change,) for change in changes]
        await asyncio.gather(*map(writer.write, commits))
        there = {change.path for change in changes if isinstance(change, Put)}
        for change in changes:
            await expect(writer, change.path, ABSENT, is_so=change.path not in there)
        if isinstance(above, Put):
            (version,) = await writer.write((Put(path, b"more", ANY_VERSION),))
            await expect(writer, path, version)
        if isinstance(below, Check):
            assert set(client.nodes) & {f"{TREE}/a", f"{TREE}/a/b"} == (
                {f"{TREE}/a", f"{TREE}{path}"} if there else set()
            )

    simulate(main)


@pytest.mark.parametrize("others", range(6))
def test_what_was_just_read_is_not_forgotten_for_the_sake_of_the_rest(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a guard that holds is refused as one that is not there, and its bundle is given up."""
    monkeypatch.setattr(facts, "_FACTS_MAX", 4)

    async def main(_: Simulation) -> None:
        client = ImpatientZooKeeper()
        writer, other = await writer_of(client), await writer_of(client)
        node = Layout().node
        paths = (f"/v/{i}" for i in range(1000))
        guard = "/guard"
        new, newer, *more = (p for p in paths if part_of(node(p)) == part_of(node(guard)))
        (version,) = await writer.write((Put(guard, b"", ABSENT),))
        await writer.write((Put("/w/last", b"", ABSENT),))
        for path in more[:others]:
            found = writer.seen(node(path))
            assert found is not None
            found(new_node(b"kept", 0, 0), 0)
        # Another process makes what is to be made here, and deletes a parent: all is looked at.
        await other.write((Put(new, b"", ABSENT), Put(newer, b"", ABSENT)))
        await other.write((Delete("/w/last", ANY_VERSION),))
        await other.write((Prune("/w"),))
        commits: list[tuple[Change, ...]] = [
            (Check(guard, version), Put("/w/x/y", b"", ABSENT)),
            (Put(new, b"", ABSENT),),
            (Put(newer, b"", ABSENT),),
        ]
        one, *two = await asyncio.gather(*map(writer.write, commits), return_exceptions=True)
        assert one == [version, 0]
        assert [type(each) for each in two] == [BadVersionError, BadVersionError]

    simulate(main)


def test_of_nodes_that_are_not_there_nothing_is_kept() -> None:
    """A client may ask for as many topics as it likes; and a ledger's node never comes again."""
    part = facts.Part(0, 0)
    for number in range(5):
        part.learn(f"/v/{number}", facts.NoNode())
    part.learn("/v", facts.Parent(0, 1))
    assert part.facts == {"/v": facts.Parent(0, 1)}
    part.learn("/v", facts.NoNode())
    assert part.facts == {}


def test_what_is_known_of_a_former_value_makes_no_version_that_no_node_has() -> None:
    """It cannot be sent, and kazoo's thread would end with the attempt, and with it the session."""

    class Strict(ImpatientZooKeeper):
        async def multi(self, operations: Sequence[Operation]) -> list[Result]:
            for each in operations:
                assert -1 <= getattr(each, "version", 0) < 1 << 31, each
            return await super().multi(operations)

    async def main(_: Simulation) -> None:
        client = Strict()
        writer, other = await writer_of(client), await writer_of(client)
        node = Layout().node
        path, *beside = (p for n in range(1000) if part_of(node(p := f"/v/{n}")) == 0)
        await writer.write((Put(path, b"former", ABSENT), Put(beside[0], b"", ABSENT)))
        found = writer.seen(node(path))
        assert found is not None
        # While it is read again, this process deletes another value of the same part, and another
        # one makes it anew.
        await writer.write((Delete(beside[0], ANY_VERSION),))
        await other.write((Delete(path, ANY_VERSION),))
        await other.write((Put(beside[1], b"", ABSENT, ephemeral=True),))
        (version,) = await other.write((Put(path, b"new", ABSENT),))
        assert version >= 1 << 32
        found(client.nodes[node(path)], version)
        assert await writer.write((Put(path, b"newer", version),)) == [version + 1]
        assert await other.write((Check(path, version + 1),)) == [version + 1]

    simulate(main)


def test_a_defect_ends_the_write_that_has_it_and_not_those_that_wait() -> None:
    """The next one may come late, or never."""

    class Defect(Exception):
        pass

    class Broken(ImpatientZooKeeper):
        async def multi(self, operations: Sequence[Operation]) -> list[Result]:
            results = await super().multi(operations)
            if self.multis == 2:  # the first one made the store
                raise Defect
            return results

    async def main(_: Simulation) -> None:
        writer = await writer_of(Broken())
        first, second = (
            asyncio.create_task(writer.write((Put("/a", b"", ABSENT),))) for _ in range(2)
        )
        with pytest.raises(OutcomeUnknownError):
            await first
        async with asyncio.timeout(60):
            with pytest.raises(BadVersionError):
                await second
        await expect(writer, "/a", 0)

    simulate(main)


@pytest.mark.parametrize(
    ("wanted", "reads"),
    [(Put("/a/new", b"", ABSENT), 0), (Put("/a/old", b"2", 0), 1), (Check("/a/old", 0), 1)],
    ids=["creates", "replaces", "checks"],
)
def test_only_what_is_to_be_there_is_read_first(wanted: Wanted, reads: int) -> None:
    async def main(_: Simulation) -> None:
        client = ImpatientZooKeeper()
        writer = await writer_of(client)
        await writer.write((Put("/a/old", b"1", ABSENT),))
        other = Writer(cast("ZooKeeperClient", client), Layout(), 30.0, lambda _: None, print)
        await other.write((Put("/a/known", b"", ABSENT),))
        read = client.get
        asked: list[str] = []

        async def get(path: str, *watch: Any) -> Any:
            asked.append(path)
            return await read(path, *watch)

        client.get = get  # type: ignore[method-assign]
        await other.write((wanted,))
        assert [path for path in asked if path.startswith(TREE)] == [f"{TREE}{wanted.path}"] * reads

    simulate(main)


def test_who_asks_as_it_is_closed_is_refused() -> None:
    """The write that was under way has not ended then, and nobody would take the next one."""

    async def main(_: Simulation) -> None:
        writer = await writer_of(ImpatientZooKeeper())
        first = asyncio.create_task(writer.write((Put("/a", b"", ABSENT),)))
        await asyncio.sleep(0)
        writer.close()
        async with asyncio.timeout(60):
            with pytest.raises(MetadataRefusedError, match="closed"):
                await writer.write((Put("/b", b"", ABSENT),))
        with pytest.raises(MetadataError):
            await first

    simulate(main)


async def expect(writer: Writer, path: str, version: int, *, is_so: bool = True) -> None:
    """Whether a value is at a version."""
    with contextlib.nullcontext() if is_so else pytest.raises(BadVersionError):
        await writer.write((Check(path, version),))


def test_nothing_comes_below_a_value_that_goes_with_its_session() -> None:
    """It is refused at once, whether that value is known here or not; what came with it is made."""

    async def main(_: Simulation) -> None:
        for known in (True, False):
            client = ImpatientZooKeeper()
            writer = await writer_of(client)
            await writer.write((Put("/a/mine", b"", ABSENT, ephemeral=True),))
            if not known:
                writer = Writer(
                    cast("ZooKeeperClient", client), Layout(), 30.0, lambda _: None, lambda *_: None
                )
            below = asyncio.create_task(writer.write((Put("/a/mine/b", b"", ABSENT),)))
            beside = asyncio.create_task(writer.write((Put("/a/other", b"", ABSENT),)))
            with pytest.raises(MetadataRefusedError):
                await asyncio.wait_for(below, 60)
            await asyncio.wait_for(beside, 60)

    simulate(main)


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ([Put("/a", b"", ABSENT), Check("/b", 0)], ["/a"]),
        ([Check("/b", 0)], None),
        ([Put("/ledgers/7", b"")], None),
        ([Put("/ledgers/7", b""), Delete("/c")], ["/c"]),
    ],
    ids=["a put", "a check", "a ledger", "some"],
)
def test_others_are_told_only_of_what_somebody_may_follow(
    changes: list[Change], paths: list[str] | None
) -> None:
    steps = [SimpleNamespace(wanted=change, appeared=False) for change in changes]
    told = telling(7, cast("Any", steps))
    assert (told and json.loads(told.data)["paths"]) == paths
