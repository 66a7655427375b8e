"""The contract of ledger stores, and ledgers as BookKeeper's own tools see them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.load import compile_java
from benchmarks.maven import CACHE, class_path
from pulsark.errors import LedgerFencedError, NoSuchLedgerError, OwnershipLostError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import MetadataStore
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.guard_nodes import GuardNodes
from pulsark.metadata.zookeeper.nodes import Operation, Result
from pulsark.processes.bookkeeper_server import LOCK, Shell
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.manager import LedgerConfig, LedgerState
from pulsark.storage.ledger.metadata import Ensemble, LedgerMetadata
from pulsark.storage.ledger.store import LedgerStore
from tests.contracts.test_ledger_store import (  # noqa: F401 - the fixture `run` is for these
    test_a_decision_is_made_again_about_what_others_wrote,
    test_a_deleted_ledger_is_gone,
    test_a_life_is_as_it_was_decided,
    test_an_id_has_one_ledger,
    test_ids_ascend_whoever_asks,
    test_updates_at_the_same_time_are_all_made,
    test_what_was_created_is_found,
    test_who_has_lost_the_guard_writes_nothing,
    test_who_knows_an_old_version_hears_what_is_decided_of_the_new_one,
)
from tests.support.bookie_faults import Publishing, broker_of, check
from tests.support.bookkeeper import ROOT, Cluster, cluster_of, ledgers_of, read_all
from tests.support.ledgers import Writes
from tests.support.zookeeper import below_a_root_of_its_own, connected

JAVA = Path(__file__).parent / "java" / "Ledgers.java"


class Nodes:
    """A cluster's root in ZooKeeper, without bookies."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._tree = MemoryTree()

    def store(self) -> LedgerStore:
        return BookKeeperLedgerStore(cluster_of(self._client, LedgerKeys()), self.guarding())

    def guarding(self) -> MetadataStore:
        return MemoryMetadataStore(self._tree)


@pytest.fixture
def run(bookkeeper: Cluster) -> Callable[[Callable[[Nodes], Awaitable[None]]], None]:
    """Runs a scenario of the contract on ledgers of its own."""

    def run_it(scenario: Callable[[Nodes], Awaitable[None]]) -> None:
        async def main() -> None:
            client = await connected(below_a_root_of_its_own(bookkeeper.address))
            try:
                await client.make(ROOT)
                await scenario(Nodes(client))
            finally:
                await client.close()

        asyncio.run(main())

    return run_it


@pytest.mark.feature("F74")
def test_no_ledger_is_written_past_a_new_owner_in_the_same_zookeeper(bookkeeper: Cluster) -> None:
    """It claims the bundle while the former owner's write is on its way, after every check."""

    async def scenario() -> None:
        async with broker_of(bookkeeper) as former, broker_of(bookkeeper) as new:
            client = former.client
            guards = await GuardNodes.find(client, "", former.metadata.identity)
            assert guards is not None
            cluster = replace(cluster_of(client, LedgerKeys()), guards=guards)
            guarded, _ = await former.owning("raced")
            ledgers = BookKeeperLedgerStore(cluster, guarded)
            metadata = LedgerMetadata(
                await ledgers.new_id(), LedgerConfig(3, 3, 2), LedgerState.OPEN,
                (Ensemble(0, 0, ("bookie-1", "bookie-2", "bookie-3")),), 17,
            )  # fmt: skip
            stored = await ledgers.create(metadata)
            multi = client.multi

            async def overtaken(operations: Sequence[Operation]) -> list[Result]:
                await new.owning("raced")
                return await multi(operations)

            client.multi = overtaken  # type: ignore[method-assign]
            for write in (
                lambda: ledgers.update(stored, decisions.start_recovery),
                lambda: ledgers.delete(metadata.ledger_id),
            ):
                with pytest.raises(OwnershipLostError):
                    await write()
            assert former.lost
            assert await ledgers.get(metadata.ledger_id) == stored

    asyncio.run(scenario())


@pytest.mark.feature("F70", "F74")
def test_a_bookie_that_hangs_holds_up_neither_a_producer_nor_the_next_owner(
    bookkeeper: Cluster,
) -> None:
    """It would be given up after 5 s. ``test_bookkeeper_faults`` has other and longer faults."""

    async def scenario() -> None:
        hanging = "bookie-2"
        async with (
            broker_of(bookkeeper, relayed=[hanging]) as former,
            broker_of(bookkeeper, relayed=[hanging]) as new,
        ):
            publishing = Publishing()
            topic = await former.open("/managed-ledgers/t/n/persistent/hangs", publishing)
            publishing.start(topic)
            await publishing.until(200)
            written = list[int]()
            for _ in range(3):  # of each another bookie is asked first
                writer = await former.ledgers.create(LedgerConfig(3, 3, 3), Writes())
                writer.append([b"read"])
                await writer.close()
                written.append(writer.ledger_id)
            for broker in (former, new):
                broker.bookies.relays[hanging].hold()
            since = time.monotonic()
            for ledger_id in written:
                assert await new.ledgers.read(ledger_id, 0, 0, 100) == [(0, b"read")]
            assert time.monotonic() - since < 4, "a reader waited for it"
            await publishing.until(200)
            began = time.monotonic()
            again = await new.open("/managed-ledgers/t/n/persistent/hangs", publishing)
            assert time.monotonic() - began < 4
            publishing.topic = again  # as a producer that connects to the new owner
            await publishing.until(200)
            assert publishing.longest(since) < 4
            for broker in (former, new):
                broker.bookies.relays[hanging].go_on()
            await publishing.stop()
            await check(publishing, again)

    asyncio.run(scenario())


@pytest.mark.feature("F73")
def test_a_ledger_is_written_read_and_deleted(bookkeeper: Cluster) -> None:
    async def scenario() -> None:
        payloads = [b"entry %d " % n * (n % 50) for n in range(2000)]
        async with ledgers_of(bookkeeper) as ours, ledgers_of(bookkeeper) as theirs:
            for config in (LedgerConfig(3, 3, 2, owner="/a"), LedgerConfig(3, 2, 2)):
                writer = await ours.create(config, Writes())
                for n in range(0, 2000, 100):
                    writer.append(payloads[n : n + 100])
                metadata = await writer.close()
                ledger_id = writer.ledger_id
                assert (metadata.last_entry_id, metadata.length) == (1999, sum(map(len, payloads)))
                assert await theirs.open(ledger_id) == metadata
                assert await read_all(theirs, ledger_id, 2000) == payloads
                await theirs.delete(ledger_id)
                with pytest.raises(NoSuchLedgerError):
                    await ours.recover(ledger_id)

    asyncio.run(scenario())


@pytest.mark.feature("F74")
def test_an_open_ledger_is_recovered_and_its_writer_fenced(bookkeeper: Cluster) -> None:
    async def scenario() -> None:
        async with ledgers_of(bookkeeper) as ours, ledgers_of(bookkeeper) as theirs:
            writes = Writes()
            writer = await ours.create(LedgerConfig(3, 3, 2), writes)
            for n in range(50):
                writer.append([b"%d" % n] * 10)
            await writer.drained(everywhere=True)
            metadata = await theirs.recover(writer.ledger_id)
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 499)
            assert metadata.length == writer.length
            writer.append([b"late"])
            await writer.drained()
            assert [type(e) for e in writes.errors] == [LedgerFencedError]
            entries = await read_all(theirs, writer.ledger_id, 500)
            assert entries == [b"%d" % n for n in range(50) for _ in range(10)]

    asyncio.run(scenario())


@pytest.mark.feature("F71")
def test_bookkeepers_tools_and_ours_read_each_others_ledgers(bookkeeper: Cluster) -> None:
    async def scenario() -> None:
        async with ledgers_of(bookkeeper) as ledgers:
            writer = await ledgers.create(LedgerConfig(3, 3, 2, owner="/managed/t1"), Writes())
            writer.append([b"%04d" % n for n in range(300)])
            await writer.close()
            ledger_id = writer.ledger_id
            printed = await run_java(bookkeeper, ledger_id)
            for expected in ("ensembleSize=3", "state=CLOSED", "lastEntryId=299", "length=1200",
                             "digestType=CRC32C", "pulsar/managed-ledger"):  # fmt: skip
                assert expected in printed
            assert re.findall(r"Eid=\d+, .*\n(\d{4})\n", printed) == [
                f"{n:04d}" for n in range(100)
            ]
            total = sum(sum(b"%04d" % n) for n in range(300))
            assert f"read 300 1200 {total}\n" in printed
            closed, left_open = map(int, re.findall(r"wrote (\d+) (\d+)", printed)[0])
            metadata = await ledgers.open(closed)
            assert (metadata.last_entry_id, metadata.config) == (29, LedgerConfig(3, 2, 2))
            assert await read_all(ledgers, closed, 30) == [b"closed-%d" % n for n in range(30)]
            metadata = await ledgers.recover(left_open)
            assert metadata.last_entry_id == 29
            assert await read_all(ledgers, left_open, 30) == [b"open-%d" % n for n in range(30)]

    asyncio.run(scenario())


async def run_java(cluster: Cluster, ledger_id: int) -> str:
    """One program for all, because it is slow to start."""
    path = compile_java(JAVA, class_path(LOCK), CACHE / "classes" / "ledgers")
    shell = Shell(cluster.directory / "java", cluster.zookeeper_path, path)
    process = await asyncio.create_subprocess_exec(
        *shell.command("Ledgers", str(ledger_id), shell=True),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()
