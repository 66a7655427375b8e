"""The quorum writer, ensemble changes and reads, over bookies in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsark.errors import (
    CorruptEntryError,
    EntrySealedError,
    LedgerFencedError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    StorageFullError,
    UnreadableTableError,
)
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import ledger_path
from pulsark.metadata.store import ABSENT
from pulsark.runtime import new_done
from pulsark.storage.bookie.bookie import EntryRun
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger import writer as writer_module
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager, LedgerState, is_absent
from pulsark.storage.ledger.metadata import Ensemble
from pulsark.storage.ledger.placement import OnePlace
from pulsark.storage.ledger.store import Decision, MetadataLedgerStore
from tests.sim.metadata import AwayStore
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, Writes, simulate, turns
from tests.support.memory_bookie import MemoryBookie

ALL = 10**9


def holding(cluster: Cluster) -> dict[str, set[int]]:
    return {b.bookie_id: set(b.entries(0)) for b in cluster.all}


def test_a_run_is_sent_as_one_and_confirmed_as_one() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        manager, writes = cluster.manager(), Writes()
        writer = await manager.create(LedgerConfig(), writes)
        assert writer.append([b"a", b"bc"]) == 0
        assert writer.append([b"d"]) == 2
        assert (writer.last_pushed, writer.last_confirmed, writer.length) == (2, -1, 0)
        assert writes.confirmed == []
        await turns()
        assert writes.confirmed == [1, 2]
        assert (writer.last_confirmed, writer.length) == (2, 4)
        assert [list(run.payloads) for run in cluster.all[0].runs] == [[b"a", b"bc"], [b"d"]]
        assert await manager.read(0, 0, ALL, 100) == [(0, b"a"), (1, b"bc"), (2, b"d")]

    simulate(main)


def test_the_next_run_carries_what_is_confirmed() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        writer = await cluster.manager().create(LedgerConfig(), Writes())
        for payload in (b"a", b"bc", b"def"):
            writer.append([payload])
            await turns()
        runs = [
            (r.first_entry_id, r.last_confirmed, r.confirmed_bytes) for r in cluster.all[0].runs
        ]
        assert runs == [(0, -1, 0), (1, 0, 1), (2, 1, 3)]

    simulate(main)


def test_a_new_ledger_waits_for_an_ack_quorum_of_bookies_and_not_for_more() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = cluster.manager()
        cluster.bookies["b1"].leave()
        await manager.create(LedgerConfig(3, 3, 2), Writes())
        cluster.bookies["b2"].leave()
        creating = asyncio.create_task(manager.create(LedgerConfig(3, 3, 2), Writes()))
        await turns()
        assert not creating.done()
        # Where one suffices, it is the one that is there.
        writer = await manager.create(LedgerConfig(1, 1, 1), Writes())
        assert writer.metadata.bookie_ids() == ["b3"]
        cluster.bookies["b1"].come_back()
        await creating

    simulate(main)


def test_an_ack_quorum_confirms_without_the_slowest() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 3), Writes()
        writer = await cluster.manager().create(LedgerConfig(3, 3, 2), writes)
        cluster.bookies["b1"].held = cluster.bookies["b2"].held = True
        writer.append([b"a"])
        await turns()
        assert writes.confirmed == []
        cluster.bookies["b2"].release_held()
        assert writes.confirmed == [0]

    simulate(main)


def test_nothing_is_confirmed_before_all_earlier_entries_are() -> None:
    """Striped: entry 1 has its copies, entry 0 has not."""

    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 3), Writes()
        writer = await cluster.manager().create(LedgerConfig(3, 1, 1), writes)
        first, second, _ = [cluster.bookies[n] for n in writer.metadata.ensembles[0].bookies]
        first.held = True
        writer.append([b"a", b"b", b"c", b"d", b"e"])
        await turns()
        assert set(second.entries(0)) == {1, 4}
        assert writes.confirmed == []
        first.release_held(1)
        assert writes.confirmed == [2]
        assert writer.length == 3
        first.release_held()
        assert writes.confirmed == [2, 4]

    simulate(main)


@pytest.mark.parametrize(
    ("size", "write", "ack"), [(1, 1, 1), (3, 3, 2), (3, 2, 2), (3, 2, 1), (5, 3, 2), (4, 1, 1)]
)
@pytest.mark.parametrize("seed", range(4))
def test_lac_is_the_quorum_rule_for_any_order_of_answers(
    size: int, write: int, ack: int, seed: int
) -> None:
    """Against the definition: all entries up to the LAC have ``ack`` copies, the next has not."""

    async def main(sim: Simulation) -> None:
        rng = random.Random(seed)
        cluster, writes = Cluster(sim, size), Writes()
        writer = await cluster.manager().create(LedgerConfig(size, write, ack), writes)
        names = writer.metadata.ensembles[0].bookies
        for bookie in cluster.all:
            bookie.held = True
        pushed = 0
        for _ in range(30):
            if rng.random() < 0.5:
                count = rng.randint(1, 7)
                assert writer.append([b"x" * (pushed + i) for i in range(count)]) == pushed
                pushed += count
            else:
                bookie = rng.choice(cluster.all)
                bookie.release_held(min(rng.randint(1, 3), len(bookie._queue)))
            copies = [
                sum(e in cluster.bookies[names[(e + i) % size]].entries(0) for i in range(write))
                for e in range(pushed)
            ]
            expected = len(list(itertools.takewhile(lambda n: n >= ack, copies))) - 1
            assert writer.last_confirmed == expected
            assert writer.length == sum(range(expected + 1))
        for bookie in cluster.all:
            bookie.release_held()
            assert all(r.preceding_bytes == sum(range(r.first_entry_id)) for r in bookie.runs)
        assert writer.last_confirmed == pushed - 1
        await writer.drained(everywhere=True)
        for e in range(pushed):
            held = [n for n in names if e in cluster.bookies[n].entries(0)]
            assert sorted(held) == sorted(names[(e + i) % size] for i in range(write))

    simulate(main)


bookie_steps = st.tuples(
    st.sampled_from(["append", "answer", "answer", "refuse", "turn"]),
    st.integers(0, 2),
    st.integers(1, 2),
)


@settings(max_examples=400)
@given(
    st.sampled_from([(3, 3, 2), (3, 2, 2), (3, 2, 1), (2, 2, 2), (4, 3, 2)]),
    st.integers(0, 2),
    st.lists(bookie_steps, min_size=4, max_size=12),
)
def test_what_is_confirmed_has_its_copies_whichever_bookie_refuses_and_when(
    config: tuple[int, int, int], spares: int, steps: list[tuple[str, int, int]]
) -> None:
    """Where the metadata say: what a bookie has answered counts only while it is named there."""

    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, config[0] + spares), Writes()
        writer = await cluster.manager().create(LedgerConfig(*config), writes)
        for bookie in cluster.all:
            bookie.held = True
        writer.append([b"x"])
        for kind, number, count in [("append", 0, 1), *steps, *[("turn", 0, 0)] * 3]:
            bookie = cluster.all[number % len(cluster.all)]
            if kind == "append" and writer.error is None:
                writer.append([b"x"] * count)
            elif kind == "answer":
                bookie.release_held(min(count, len(bookie._queue)))
            elif kind == "refuse":
                bookie.read_only = True
                bookie.release_held(min(1, len(bookie._queue)))
                bookie.read_only = False
            else:
                await turns()
            metadata = cluster.stored()
            for entry_id in range(writer.last_confirmed + 1):
                ensemble, _ = metadata.ensemble_at(entry_id)
                named = metadata.holders(ensemble, entry_id)
                held = [n for n in named if entry_id in cluster.bookies[n].entries(0)]
                assert len(held) >= config[2], (entry_id, named, held)

    simulate(main)


def test_close_waits_for_what_was_sent_and_is_final() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(), writes)
        writer.append([b"a", b"b"])
        metadata = await writer.close()
        assert writes.confirmed == [1]
        assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", 1, 2)
        assert await cluster.manager().open(0) == metadata
        with pytest.raises(StorageError, match="closed"):
            writer.append([b"c"])
        empty = await manager.create(LedgerConfig(), Writes())
        assert (await empty.close()).last_entry_id == -1

    simulate(main)


# Failing bookies.


@given(st.data())
def test_who_waits_for_all_copies_waits_for_no_bookie_that_failed(data: st.DataObject) -> None:
    """Whichever bookies are slow, and fail meanwhile, in any order; there may be a spare one."""
    spares = data.draw(st.integers(0, 1))
    steps = data.draw(st.lists(st.sampled_from(["append", "fail", "answer"]), max_size=8))

    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 3), Writes()
        writer = await cluster.manager().create(LedgerConfig(3, 3, 2), writes)
        for number in range(spares):
            cluster.add(f"b{4 + number}")
        slow = cluster.bookies[data.draw(st.sampled_from(writer.metadata.ensembles[0].bookies))]
        slow.held = True
        writer.append([b"first"])
        await turns()
        draining = asyncio.ensure_future(writer.drained(everywhere=True))
        for step in steps:
            if step == "append" and writer.error is None:
                writer.append([b"more"])
            elif step == "fail":
                slow.down = True
                slow.release_held()
            elif not slow.down:
                slow.release_held()
            await turns()
        slow.down = True
        slow.release_held()
        await asyncio.wait_for(draining, 60)
        if writer.error is None:
            ended = await writer.close()
            assert ended.last_entry_id == writer.last_pushed == writer.last_confirmed
            for bookie_id in set(ended.ensembles[-1].bookies) - {slow.bookie_id}:
                first = ended.ensembles[-1].first_entry_id
                held = cluster.bookies[bookie_id].entries(0)
                assert set(range(first, ended.last_entry_id + 1)) <= set(held)

    simulate(main)


def test_of_three_bookies_one_may_die() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 3), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(3, 3, 2), writes)
        writer.append([b"a"])
        await turns()
        cluster.bookies["b2"].down = True
        writer.append([b"b"])
        await turns()
        writer.append([b"c"])
        await writer.close()
        assert writes.confirmed[-1] == 2
        assert writes.errors == []
        assert holding(cluster) == {"b1": {0, 1, 2}, "b2": {0}, "b3": {0, 1, 2}}
        assert await manager.read(0, 0, 2, 100) == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert len((await manager.open(0)).ensembles) == 1
        # A new ledger is possible, too: it begins with two of its three copies.
        again = await manager.create(LedgerConfig(3, 3, 2), Writes())
        again.append([b"x"])
        assert (await again.close()).last_entry_id == 0

    simulate(main)


@pytest.mark.parametrize(("fault", "kind"), [("down", StorageError), ("full", StorageFullError)])
def test_without_an_ack_quorum_the_ledger_fails_once(fault: str, kind: type) -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 3), Writes()
        writer = await cluster.manager().create(LedgerConfig(3, 3, 2), writes)
        for name in ("b1", "b3"):
            setattr(cluster.bookies[name], fault, True)
        writer.append([b"a"])
        writer.append([b"b"])
        await turns()
        assert [type(e) for e in writes.errors] == [kind]
        assert writes.confirmed == []
        with pytest.raises(kind):
            writer.append([b"c"])
        with pytest.raises(kind):
            await writer.close()

    simulate(main)


def test_a_spare_takes_the_place_of_a_failed_bookie() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 2), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), writes)
        writer.append([b"a"])
        await turns()
        spare = cluster.add("b3")
        cluster.bookies["b1"].down = True
        writer.append([b"b"])
        writer.append([b"c"])
        metadata = await writer.close()
        assert writes.errors == []
        assert [e.first_entry_id for e in metadata.ensembles] == [0, 1]
        assert metadata.ensembles[1].length == 1
        assert set(metadata.ensembles[1].bookies) == {"b2", "b3"}
        assert set(spare.entries(0)) == {1, 2}
        cluster.bookies["b1"].down = False
        assert await cluster.manager().read(0, 0, 2, 100) == [(0, b"a")]
        assert await cluster.manager().read(0, 1, 2, 100) == [(1, b"b"), (2, b"c")]

    simulate(main)


def test_a_spare_counts_for_nothing_before_the_metadata_name_it() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 2), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), writes)
        spare = cluster.add("b4")
        puts = Gate(manager)
        cluster.bookies["b1"].down = True
        writer.append([b"a"])
        await turns()
        assert writes.confirmed == []
        assert spare.entries(0) == {}, "it is not even asked"
        writer.append([b"b"])
        await turns()
        puts.open()
        await turns()
        assert writes.confirmed == [0, 1]
        assert set(spare.entries(0)) == {0, 1}

    simulate(main)


@pytest.mark.parametrize("config", [(3, 3, 2), (5, 3, 2)])
@pytest.mark.parametrize("much", [False, True])
def test_what_both_ensembles_share_confirms_while_the_change_is_made(
    config: tuple[int, int, int], much: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``much``: more than is kept for the spare, which is asked from a later entry on then."""
    monkeypatch.setattr(writer_module, "KEPT_BYTES_MAX", 3 if much else 1 << 20)

    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, config[0]), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(*config), writes)
        spare = cluster.add("b9")
        puts = Gate(manager)
        cluster.bookies["b1"].down = True
        for n in range(10):
            writer.append([b"a", b"b"] if n % 2 else [b"c"])
            await turns()
        assert writes.confirmed[-1] == writer.last_pushed == 14, "nobody waits for the metadata"
        assert spare.entries(0) == {}
        cluster.bookies["b2"].held = True
        writer.append([b"d"] * 5)
        puts.open()
        await turns()
        cluster.bookies["b2"].held = False
        cluster.bookies["b2"].release_held()
        await turns()
        assert writes.errors == []
        assert writer.last_confirmed == writer.last_pushed == 19
        metadata = await writer.close()
        last = metadata.ensembles[-1]
        assert last.first_entry_id > 10 if much else last.first_entry_id <= 1
        for e in range(last.first_entry_id, 20):
            for name in metadata.holders(last, e):
                assert e in cluster.bookies[name].entries(0), f"{e} is not on {name}"
        length = 0
        for e in range(20):
            [(_, payload)] = await manager.read(0, e, e, 1)
            length += len(payload)
        assert (metadata.last_entry_id, metadata.length) == (19, length)

    simulate(main)


@pytest.mark.parametrize("made", [False, True])
def test_publishing_goes_on_without_the_metadata_store_when_a_bookie_fails(made: bool) -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 3), Writes()
        store = AwayStore(cluster.tree, 3, 30, made=made)
        manager = LedgerManager(store, cluster.bookies, cluster.runtime)
        writer = await manager.create(LedgerConfig(3, 3, 2), writes)
        spare = cluster.add("b4")
        assert store.writes == 2
        cluster.bookies["b1"].down = True
        for n in range(25):
            writer.append([b"%d" % n])
            await asyncio.sleep(1)
            assert writes.confirmed[-1] == n, "it does not wait"
        assert store.writes == 3, "the change was asked for, and nobody knows what became of it"
        await asyncio.sleep(30)
        assert writes.errors == []
        first = cluster.stored().ensembles[-1].first_entry_id
        assert set(spare.entries(0)) == set(range(first, 25)), "it has all from its first one on"
        assert first <= 1
        assert (await writer.close()).last_entry_id == 24

    simulate(main)


def test_a_closed_ledger_is_read_where_its_copies_were_repaired() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), Writes())
        writer.append([b"a", b"b"])
        await writer.close()
        assert len(await manager.read(0, 0, 1, 100)) == 2
        for lost, copy in (("b1", "b3"), ("b2", "b4")):
            cluster.add(copy)
            for entry_id, payload in cluster.bookies[lost].entries(0).items():
                cluster.bookies[copy].put(0, entry_id, payload)
            del cluster.bookies[lost]
            await changed_by_another(cluster, decisions.replace_lost(0, lost, copy))
        assert [entry for _, entry in await manager.read(0, 0, 1, 100)] == [b"a", b"b"]
        assert set((await manager.open(0)).ensembles[0].bookies) == {"b3", "b4"}

    simulate(main)


def test_a_closed_ledger_is_deleted_where_its_copies_were_repaired() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), Writes())
        writer.append([b"a"])
        ended = await writer.close()
        assert len(await manager.read(0, 0, 0, 100)) == 1
        lost = ended.ensembles[0].bookies[0]
        (copy,) = cluster.bookies.keys() - set(ended.ensembles[0].bookies)
        cluster.bookies[copy].put(0, 0, b"a")
        await changed_by_another(cluster, decisions.replace_lost(0, lost, copy))
        await manager.delete(0)
        assert cluster.bookies[copy].ledger_ids() == []

    simulate(main)


class Told(OnePlace):
    """Tells of bookies that are lost."""

    def on_lost(self, listener: Callable[[str], None]) -> None:
        self.lost = listener


def test_a_lost_bookie_is_replaced_although_nobody_appends() -> None:
    async def main(sim: Simulation) -> None:
        cluster, told = Cluster(sim, 3), Told()
        store = MemoryMetadataStore(cluster.tree)
        manager = LedgerManager(store, cluster.bookies, cluster.runtime, places=told)
        writers = [await manager.create(LedgerConfig(3, 3, 2), Writes()) for _ in range(450)]
        writers[7].append([b"a"])
        await turns()
        spare = cluster.add("b4")
        del cluster.bookies["b2"]
        told.lost("b2")
        await asyncio.sleep(1)
        for writer in writers:
            names = cluster.stored(writer.ledger_id).ensembles[-1].bookies
            assert sorted(names) == ["b1", "b3", "b4"]
            assert writer.error is None
        writers[7].append([b"b"])
        await turns()
        assert spare.entries(7) == {1: b"b"}
        await writers[7].close()
        told.lost("b4")
        await turns()
        assert len(cluster.stored(7).ensembles) == 2, "a closed one stays"

    simulate(main)


def test_lost_bookies_go_on_if_nobody_can_replace_them() -> None:
    """After a restart of ZooKeeper all may be lost for a moment, and answer."""

    async def main(sim: Simulation) -> None:
        cluster, told, writes = Cluster(sim, 3), Told(), Writes()
        store = MemoryMetadataStore(cluster.tree)
        manager = LedgerManager(store, cluster.bookies, cluster.runtime, places=told)
        writer = await manager.create(LedgerConfig(3, 3, 2), writes)
        for name in cluster.bookies:
            told.lost(name)
        await turns()
        writer.append([b"a"])
        await turns()
        assert (writer.error, writes.confirmed) == (None, [0])
        assert [bookie.entries(0) for bookie in cluster.bookies.values()] == [{0: b"a"}] * 3
        cluster.bookies["b2"].down = True
        cluster.add("b4")
        writer.append([b"b"])
        await turns()
        assert set(cluster.stored(0).ensembles[-1].bookies) == {"b1", "b3", "b4"}

    simulate(main)


def test_two_failures_one_after_the_other_use_two_spares() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 2), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), writes)
        cluster.add("b3"), cluster.add("b4")
        puts = Gate(manager)
        cluster.bookies["b1"].down = True
        writer.append([b"a"])
        await turns()
        cluster.bookies["b2"].down = True
        writer.append([b"b"])
        await turns()
        puts.open()
        metadata = await writer.close()
        assert writes.errors == []
        assert [e.first_entry_id for e in metadata.ensembles] == [0]
        assert set(metadata.ensembles[0].bookies) == {"b3", "b4"}
        assert set(cluster.bookies["b3"].entries(0)) == {0, 1}
        assert set(cluster.bookies["b4"].entries(0)) == {0, 1}

    simulate(main)


async def changed_by_another(cluster: Cluster, decide: Decision) -> None:
    """Somebody changes the metadata of ledger 0 past its writer."""
    store = MetadataLedgerStore(MemoryMetadataStore(cluster.tree))
    stored = await store.get(0)
    assert stored is not None
    await store.update(stored, decide)


@pytest.mark.parametrize("other", ["recovery", "writer"])
def test_an_ensemble_change_against_another_owner_fences(other: str) -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 2), Writes()
        writer = await cluster.manager().create(LedgerConfig(2, 2, 1), writes)
        writer.append([b"a"])
        await turns()
        cluster.add("b3")
        if other == "recovery":
            await changed_by_another(cluster, decisions.start_recovery)
        else:
            before = writer.metadata.ensembles[-1]
            await changed_by_another(
                cluster, decisions.change_ensemble(before, Ensemble(1, 1, ("b3", "b2")))
            )
            cluster.add("b4")
        cluster.bookies["b1"].down = True
        writer.append([b"b"])
        await turns()
        assert [type(e) for e in writes.errors] == [LedgerFencedError]
        # The other one asks b2 too, whichever ensemble it knows.
        assert writes.confirmed in ([0], [0, 1])

    simulate(main)


def test_a_repair_of_earlier_entries_does_not_disturb_the_writer() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 3), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(3, 3, 2), writes)
        writer.append([b"a"])
        await turns()
        for lost, copy in (("b1", "b4"), ("b2", "b5")):
            cluster.add(copy)
            cluster.bookies[lost].down = True
            writer.append([b"b"])
            await turns()
            # Every ensemble but the last one is repaired by others while the ledger is written.
            await changed_by_another(cluster, decisions.replace_lost(0, lost, copy))
        metadata = await writer.close()
        assert writes.errors == []
        members = [set(e.bookies) for e in metadata.ensembles]
        assert members == [{"b3", "b4", "b5"}, {"b2", "b3", "b4"}, {"b3", "b4", "b5"}]
        assert cluster.stored() == metadata

    simulate(main)


@pytest.mark.parametrize("error", [MetadataError("the store is away"), AttributeError("defect")])
def test_an_ensemble_change_that_the_store_cannot_make_fails_the_ledger(
    error: Exception,
) -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 2), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), writes)
        cluster.add("b3")
        Gate(manager).fail(error)
        cluster.bookies["b1"].down = True
        writer.append([b"a"])
        await turns()
        assert len(writes.errors) == 1
        assert "ensemble change" in str(writes.errors[0])

    simulate(main)


def test_a_ledger_has_at_least_an_ack_quorum_of_bookies() -> None:
    async def main(sim: Simulation) -> None:
        with pytest.raises(StorageError, match="2 bookies are needed and 1 are there"):
            await Cluster(sim, 1).manager().create(LedgerConfig(3, 3, 2), Writes())
        writer = await Cluster(sim, 2).manager().create(LedgerConfig(3, 3, 2), Writes())
        assert writer.metadata.config == LedgerConfig(2, 2, 2)

    simulate(main)


def test_bookies_that_failed_lately_are_chosen_last() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(3, 3, 1), Writes())
        cluster.bookies["b2"].down = True
        writer.append([b"a"])
        await turns()
        for _ in range(10):
            chosen = (await manager.create(LedgerConfig(2, 2, 1), Writes())).metadata.bookie_ids()
            assert chosen == ["b1", "b3"]
        import asyncio

        await asyncio.sleep(31)
        ensembles = [
            (await manager.create(LedgerConfig(2, 2, 1), Writes())).metadata.bookie_ids()
            for _ in range(20)
        ]
        assert any("b2" in ensemble for ensemble in ensembles)

    simulate(main)


# Reading.


def test_reads_fall_over_to_another_copy() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(3, 3, 3), Writes())
        writer.append([b"%d" % n for n in range(6)])
        await writer.close()
        cluster.bookies["b1"].down = True
        cluster.bookies["b2"].corrupt(0, 2)
        cluster.bookies["b3"].lose(0, 4)
        found, entry_id = [], 0
        while entry_id < 6:
            batch = await manager.read(0, entry_id, 5, 100)
            assert [e for e, _ in batch] == list(range(entry_id, entry_id + len(batch)))
            found += batch
            entry_id += len(batch)
        assert found == [(n, b"%d" % n) for n in range(6)]

    simulate(main)


def test_a_ledger_that_is_written_is_read_where_its_copies_were_repaired() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), Writes())
        writer.append([b"a", b"b"])
        await writer.drained()
        cluster.add("b3"), cluster.add("b4"), cluster.add("b5")
        for name in ("b1", "b2"):
            cluster.bookies[name].down = True
        writer.append([b"c"])
        await writer.drained()
        for lost, copy in (("b1", "b5"), ("b2", "b4")):
            run, (future, done) = EntryRun(0, 0, -1, [b"a", b"b"]), new_done()
            cluster.bookies[copy].append(run, done, recovery=True)
            await future
            await changed_by_another(cluster, decisions.replace_lost(0, lost, copy))
        assert await manager.read(0, 0, 1, 100) == [(0, b"a"), (1, b"b")]
        cluster.bookies["b5"].down = cluster.bookies["b4"].down = True
        with pytest.raises(StorageError):
            await manager.read(0, 0, 1, 100)

    simulate(main)


def test_striped_reads_are_merged_and_have_no_gaps() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 5)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(5, 2, 2), Writes())
        writer.append([b"%02d" % n for n in range(40)])
        await writer.close()
        everything = [(n, b"%02d" % n) for n in range(40)]
        assert await manager.read(0, 0, ALL, 10_000) == everything
        cluster.bookies["b3"].down = True
        found: list[tuple[int, bytes]] = []
        while len(found) < 40:
            batch = await manager.read(0, len(found), ALL, 20)
            assert batch
            found += batch
        assert found == everything

    simulate(main)


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (["lose", "lose"], NoSuchEntryError),
        (["lose", "corrupt"], CorruptEntryError),
        (["lose", "down"], StorageError),
        (["corrupt", "down"], CorruptEntryError),
        (["lose", "seal"], EntrySealedError),
    ],
)
def test_the_gravest_error_is_told(faults: list[str], kind: type[StorageError]) -> None:
    """Absent only if all are sure."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), Writes())
        writer.append([b"a", b"b"])
        await writer.close()
        for bookie, fault in zip(cluster.all, faults, strict=True):
            await inflict(bookie, fault)
        with pytest.raises(StorageError) as caught:
            await manager.read(0, 1, 1, 100)
        assert type(caught.value) is kind

    async def inflict(bookie: MemoryBookie, fault: str) -> None:
        if fault == "lose":
            bookie.lose(0, 1)
        elif fault == "corrupt":
            bookie.corrupt(0, 1)
        elif fault == "seal":
            await bookie.release(0, 1)
        else:
            bookie.down = True

    simulate(main)


def test_no_reader_sees_beyond_what_is_confirmed() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        owner = cluster.manager()
        writer = await owner.create(LedgerConfig(2, 2, 2), Writes())
        writer.append([b"a"])
        await turns()
        cluster.bookies["b2"].held = True
        writer.append([b"b"])
        await turns()
        assert set(cluster.bookies["b1"].entries(0)) == {0, 1}
        assert await owner.read(0, 0, ALL, 100) == [(0, b"a")]
        assert await owner.read(0, 1, ALL, 100) == []
        # Another process knows only what the bookies were told.
        assert await cluster.manager().read(0, 0, ALL, 100) == [(0, b"a")]
        assert await cluster.manager().read(0, 1, ALL, 100) == []

    simulate(main)


def test_a_byte_limit_ends_a_read_but_not_before_one_entry() -> None:
    async def main(sim: Simulation) -> None:
        manager = Cluster(sim).manager()
        writer = await manager.create(LedgerConfig(), Writes())
        writer.append([b"x" * 10] * 5)
        await writer.close()
        assert len(await manager.read(0, 0, ALL, 1)) == 1
        assert len(await manager.read(0, 0, ALL, 30)) == 3
        assert await manager.read(0, 5, ALL, 30) == []

    simulate(main)


# Deleting.


def test_a_deleted_ledger_is_gone_from_bookies_and_metadata() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), Writes())
        writer.append([b"a"])
        await writer.close()
        cluster.bookies["b1"].down = True
        with pytest.raises(StorageError):
            await manager.delete(0)
        # Only partly gone: it is still known, so that the rest can be removed.
        assert cluster.tree.get(ledger_path(0)) is not None
        cluster.bookies["b1"].down = False
        await manager.delete(0)
        assert [b.ledger_ids() for b in cluster.all] == [[], []]
        with pytest.raises(NoSuchLedgerError):
            await manager.read(0, 0, 0, 1)
        await manager.delete(0)

    simulate(main)


def test_the_writer_of_a_deleted_ledger_hears_nothing_any_more() -> None:
    async def main(sim: Simulation) -> None:
        cluster, writes = Cluster(sim, 2), Writes()
        manager = cluster.manager()
        writer = await manager.create(LedgerConfig(2, 2, 2), writes)
        cluster.bookies["b1"].held = True
        writer.append([b"a"])
        await turns()
        await manager.delete(0)
        cluster.bookies["b1"].release_held()
        await turns()
        assert writer.error is not None
        assert (writes.confirmed, writer.last_confirmed) == ([], -1)

    simulate(main)


def names_places(cluster: Cluster, *names: str) -> None:
    """The places of the fleet have these bookies."""
    for place, name in enumerate(names, 1):
        value = json.dumps({"version": 1, "bookieId": name, "instanceId": "x"}).encode()
        cluster.tree.put(f"/bookies/bookie-{place}", value, ABSENT, None)


@pytest.mark.parametrize("order", ["delete", "release"])
def test_a_bookie_that_is_lost_for_good_needs_no_telling(order: str) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        writer = await cluster.manager().create(LedgerConfig(3, 3, 2), Writes())
        writer.append([b"a", b"b"])
        await writer.close()
        names_places(cluster, "b1", "b2-2", "b3")
        lost = cluster.bookies.pop("b2")
        manager = cluster.manager()
        if order == "delete":
            await manager.delete(0)
            assert cluster.tree.get(ledger_path(0)) is None
        else:
            await manager.release(0, 1)
        assert [bookie.entries(0) for bookie in cluster.all] == [{}, {}]
        assert len(lost.entries(0)) == 2

    simulate(main)


@pytest.mark.parametrize("names", [["b1", "b2", "b3"], []], ids=["known", "no fleet"])
def test_a_bookie_that_is_only_away_has_to_be_told(names: list[str]) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        writer = await cluster.manager().create(LedgerConfig(3, 3, 2), Writes())
        writer.append([b"a"])
        await writer.close()
        names_places(cluster, *names)
        del cluster.bookies["b2"]
        manager = cluster.manager()
        for order in (manager.delete(0), manager.release(0, 0)):
            with pytest.raises(StorageError, match="b2 is not available"):
                await order
        assert cluster.tree.get(ledger_path(0)) is not None

    simulate(main)


def test_ids_are_never_used_twice() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        ids = []
        for _ in range(5):
            manager = cluster.manager()
            ids.append((await manager.create(LedgerConfig(), Writes())).ledger_id)
            await manager.delete(ids[-1])
        assert ids == list(range(5))

    simulate(main)


def test_the_stored_metadata_says_who_owns_the_ledger() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.manager().create(LedgerConfig(owner="/managed-ledgers/x"), Writes())
        metadata = cluster.stored()
        assert metadata.config.owner == "/managed-ledgers/x"
        assert metadata.state is LedgerState.OPEN

    simulate(main)


class Gate:
    """Holds up a manager's metadata writes."""

    def __init__(self, manager: object) -> None:
        import asyncio

        store = manager._metadata  # type: ignore[attr-defined]
        self._event = asyncio.Event()
        self._error: Exception | None = None
        put = store.put

        async def gated(*args: object, **kwargs: object) -> int:
            await self._event.wait()
            if self._error is not None:
                raise self._error
            version: int = await put(*args, **kwargs)
            return version

        store.put = gated

    def open(self) -> None:
        self._event.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._event.set()


class Sealed:
    """A table with some entries."""

    def __init__(self, entries: dict[int, bytes]) -> None:
        self.entries = entries

    async def read_of(
        self, owner: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        assert (owner, ledger_id) == ("/managed-ledgers/x", 0)
        found = [(i, e) for i, e in self.entries.items() if first <= i <= last]
        if not found or found[0][0] != first:
            raise NoSuchEntryError(f"{first} is not sealed")
        return found

    async def sealed_through(self, owner: str, ledger_id: int) -> int:
        return max(self.entries, default=-1)


def test_released_entries_come_from_the_table_and_others_from_bookies() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        manager = cluster.manager()
        sealed = Sealed({0: b"a", 1: b"b"})
        manager = LedgerManager(manager._metadata, cluster.bookies, cluster.runtime, sealed)
        writer = await manager.create(LedgerConfig(owner="/managed-ledgers/x"), Writes())
        writer.append([b"a", b"b", b"c"])
        await turns()
        await manager.release(0, 1)
        assert list(cluster.all[0].entries(0)) == [2]
        assert await manager.read(0, 0, ALL, 100) == [(0, b"a"), (1, b"b")]
        assert await manager.read(0, 2, ALL, 100) == [(2, b"c")]
        del sealed.entries[1]
        with pytest.raises(EntrySealedError):
            await manager.read(0, 1, ALL, 100)
        cluster.all[0].down = True
        with pytest.raises(StorageError):
            await manager.release(0, 2)
        assert await manager.read(0, 0, ALL, 100) == [(0, b"a")]

    simulate(main)


class LostFiles(Sealed):
    """A table whose files are gone."""

    async def read_of(
        self, owner: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        raise UnreadableTableError(f"entry {ledger_id}:{first} can be read from no storage root")


@pytest.mark.parametrize(
    ("b1", "b2", "absent"),
    [
        ("never had it", "never had it", True),
        ("never had it", "is lost", True),
        ("never had it", "is down", False),
        ("never had it", "is away", False),
        ("never had it", "has it damaged", False),
        ("has it damaged", "is down", False),
        ("is down", "is lost", False),
    ],
)
def test_what_its_table_lost_is_absent_only_if_all_bookies_are_sure(
    b1: str, b2: str, absent: bool
) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        writer = await cluster.manager().create(
            LedgerConfig(2, 2, 1, owner="/managed-ledgers/x"), Writes()
        )
        writer.append([b"a", b"b"])
        await writer.close()
        names_places(cluster, "b1", "b3" if b2 == "is lost" else "b2")
        for name, state in (("b1", b1), ("b2", b2)):
            bookie = cluster.bookies[name]
            if state == "never had it":
                await bookie.delete(0)
            elif state == "is down":
                bookie.down = True
            elif state == "has it damaged":
                bookie.corrupt(0, 0)
            else:
                del cluster.bookies[name]
        store, table = MemoryMetadataStore(cluster.tree), LostFiles({})
        manager = LedgerManager(store, cluster.bookies, cluster.runtime, table)
        with pytest.raises(StorageError) as caught:
            await manager.read(0, 0, ALL, 100)
        assert is_absent(caught.value) == absent
        assert isinstance(caught.value, UnreadableTableError) == absent

    simulate(main)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_bookie_that_was_not_told_is_not_asked_for_what_is_in_the_table(restarted: bool) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        manager = cluster.manager()
        # One message was erased after it had been sealed.
        table = Sealed({0: b"a", 1: b"-"})
        manager = LedgerManager(manager._metadata, cluster.bookies, cluster.runtime, table)
        writer = await manager.create(LedgerConfig(2, 2, 1, owner="/managed-ledgers/x"), Writes())
        writer.append([b"a", b"b", b"c"])
        await writer.close()
        cluster.bookies["b1"].down = True
        with pytest.raises(StorageError):
            await manager.release(0, 1)
        cluster.bookies["b1"].down = False
        if restarted:
            manager = LedgerManager(manager._metadata, cluster.bookies, cluster.runtime, table)
        assert len(cluster.bookies["b1"].entries(0)) == 3
        for first in (0, 1):
            expected = [(i, entry) for i, entry in table.entries.items() if i >= first]
            assert await manager.read(0, first, ALL, 100) == expected
        assert await manager.read(0, 2, ALL, 100) == [(2, b"c")]
        if not restarted:
            assert await manager.recycle() == (0, ["b1"])
        await manager.release(0, 1)
        assert await manager.recycle() == (0, [])
        cluster.bookies["b2"].down = True
        assert await manager.recycle() == (0, ["b2"]), "its journal may have what was deleted"

    simulate(main)
