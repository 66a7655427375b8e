"""Recovery: where a ledger ends, and who is stopped. Each rule by its own case."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import (
    CorruptEntryError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.metadata.changes import Change, Check
from pulsark.metadata.guarded import GuardedMetadataStore
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager, LedgerState
from pulsark.storage.ledger.metadata import Ensemble
from pulsark.storage.ledger.store import MetadataLedgerStore
from pulsark.storage.ledger.writer import LedgerWriter
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, Writes, simulate, turns
from tests.support.memory_bookie import MemoryBookie

ALL = 10**9


async def started(
    cluster: Cluster, config: LedgerConfig, entries: int = 3
) -> tuple[LedgerWriter, Writes]:
    """A ledger with some confirmed entries, still open."""
    writes = Writes()
    writer = await cluster.manager().create(config, writes)
    for n in range(entries):
        writer.append([b"%d" % n])
        await turns()
    assert writer.last_confirmed == entries - 1
    return writer, writes


async def contents(manager: LedgerManager, ledger_id: int = 0) -> list[bytes]:
    return [payload for _, payload in await manager.read(ledger_id, 0, ALL, 1 << 20)]


@pytest.mark.feature("F74")
@pytest.mark.parametrize(
    ("keeps_length", "tells_end"), [(True, False), (False, False), (True, True)]
)
@pytest.mark.parametrize("config", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 1, 1)])
def test_all_that_was_confirmed_is_there_and_the_writer_is_stopped(
    config: tuple[int, int, int], keeps_length: bool, tells_end: bool
) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, config[0], keeps_length=keeps_length)
        for bookie in cluster.all:
            bookie.tells_end = tells_end
        writer, writes = await started(cluster, LedgerConfig(*config), 12)
        owner = cluster.manager()
        metadata = await owner.recover(0)
        assert metadata.is_closed
        assert (metadata.last_entry_id, metadata.length) == (11, 14)
        assert await contents(owner) == [b"%d" % n for n in range(12)]
        writer.append([b"too late"])
        await turns()
        assert [type(e) for e in writes.errors] == [LedgerFencedError]
        assert writes.confirmed[-1] == 11
        # Every entry above the last known LAC got all its copies.
        assert await owner.recover(0) == metadata

    simulate(main)


@pytest.mark.parametrize("tells_end", [True, False])
def test_an_entry_that_one_bookie_has_is_copied_to_all_and_kept(tells_end: bool) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        for bookie in cluster.all:
            bookie.tells_end = tells_end
        await started(cluster, LedgerConfig(3, 3, 2), 1)
        cluster.bookies["b3"].put(0, 1, b"perhaps")
        metadata = await cluster.manager().recover(0)
        assert (metadata.last_entry_id, metadata.length) == (1, 8)
        assert [b.entries(0)[1] for b in cluster.all] == [b"perhaps"] * 3

    simulate(main)


def test_a_bookie_that_is_gone_stops_neither_the_copies_nor_what_others_append() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 3)
        del cluster.bookies["b2"]
        owner = cluster.manager()
        assert (await owner.recover(0)).last_entry_id == 2
        owner.flush()

    simulate(main)


def test_what_comes_after_the_first_absent_entry_was_never_confirmed() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 1)
        cluster.bookies["b3"].put(0, 2, b"beyond a gap")
        owner = cluster.manager()
        assert (await owner.recover(0)).last_entry_id == 0
        assert await contents(owner) == [b"0"]

    simulate(main)


def test_a_quorum_that_is_sure_decides_that_an_entry_is_absent() -> None:
    """(Qw - Qa) + 1 = 2 of 3 are sure; with one sure and two unknown it could be confirmed."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 1)
        cluster.bookies["b1"].down = True
        assert (await cluster.manager().recover(0)).last_entry_id == 0

        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 1)
        for name in ("b1", "b2"):
            cluster.bookies[name].put(0, 1, b"x")
            cluster.bookies[name].corrupt(0, 1)
        with pytest.raises(CorruptEntryError):
            await cluster.manager().recover(0)
        cluster.bookies["b2"].put(0, 1, b"x")
        cluster.bookies["b2"]._ledgers[0].corrupt.clear()
        assert (await cluster.manager().recover(0)).last_entry_id == 1
        assert cluster.bookies["b1"].entries(0)[1] == b"x"

    simulate(main)


def test_a_damaged_entry_of_the_only_copy_stops_recovery_instead_of_cutting() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 1)
        await started(cluster, LedgerConfig(), 3)
        cluster.all[0].corrupt(0, 2)
        for _ in range(2):
            with pytest.raises(CorruptEntryError):
                await cluster.manager().recover(0)
        stored = cluster.stored()
        assert stored.state is LedgerState.IN_RECOVERY

    simulate(main)


def test_without_a_fence_on_every_ack_quorum_there_is_no_recovery() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        writer, _ = await started(cluster, LedgerConfig(3, 3, 2), 1)
        cluster.bookies["b1"].down = cluster.bookies["b2"].down = True
        with pytest.raises(StorageError, match="cannot be recovered"):
            await cluster.manager().recover(0)
        cluster.bookies["b1"].down = False
        assert (await cluster.manager().recover(0)).last_entry_id == 0
        cluster.bookies["b2"].down = False
        writer.append([b"late"])
        await turns()
        assert writer.last_confirmed == 0
        assert isinstance(writer.error, LedgerFencedError)

    simulate(main)


@pytest.mark.parametrize("config", [(3, 3, 2), (5, 3, 2)])
@pytest.mark.parametrize("unconfirmed", ["b1", "b2", "b3"])
def test_a_bookie_that_hangs_holds_up_a_recovery_for_a_moment_only(
    config: tuple[int, int, int], unconfirmed: str
) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, config[0])
        writer, _ = await started(cluster, LedgerConfig(*config), 12)
        b1 = cluster.bookies["b1"]
        for bookie in cluster.all:
            bookie.held = bookie.bookie_id != unconfirmed
        writer.append([b"perhaps"])
        await turns()
        for bookie in cluster.all:
            bookie.held = False
        b1.hang()
        began = cluster.clock.monotonic()
        metadata = await cluster.manager().recover(0)
        assert cluster.clock.monotonic() - began <= 1
        assert metadata.last_entry_id in (11, 12)
        assert len(await contents(cluster.manager())) == metadata.last_entry_id + 1
        b1.go_on()
        await turns()
        assert writer.last_confirmed <= metadata.last_entry_id

    simulate(main)


def test_where_a_second_bookie_hangs_a_recovery_waits() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 5)
        for name in ("b1", "b2"):
            cluster.bookies[name].hang()
        recovery = asyncio.create_task(cluster.manager().recover(0))
        await asyncio.sleep(3600)
        assert not recovery.done()
        cluster.bookies["b2"].go_on()
        assert (await recovery).last_entry_id == 4

    simulate(main)


def test_what_a_bookie_stored_last_is_not_the_end() -> None:
    """A recovery that broke off has copied the first entry again that may not be confirmed."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 2)
        for bookie in cluster.all:
            bookie.tells_end = True
            for entry_id in (2, 3, 1):
                bookie.put(0, entry_id, b"%d" % entry_id)
            assert (await bookie.tail(0, fence=False)).last_confirmed == 0
        assert (await cluster.manager().recover(0)).last_entry_id == 3
        assert await contents(cluster.manager()) == [b"0", b"1", b"2", b"3"]

    simulate(main)


def test_behind_what_a_bookie_told_of_one_entry_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For several, a client of BookKeeper would look for the end again, and behind gaps."""
    asked: list[tuple[str, int, int]] = []
    read = MemoryBookie.read

    async def recorded(bookie: MemoryBookie, ledger_id: int, first: int, *more: int) -> object:
        asked.append((bookie.bookie_id, first, more[0] - first))
        return await read(bookie, ledger_id, first, *more)

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 2)
        monkeypatch.setattr(MemoryBookie, "read", recorded)
        assert (await cluster.manager().recover(0)).last_entry_id == 1

    simulate(main)
    assert sorted(each for each in asked if each[1] == 2) == [
        ("b1", 2, 0),
        ("b2", 2, 0),
        ("b3", 2, 0),
    ]
    assert all(more for _, first, more in asked if first < 2)


def test_an_entry_of_which_one_copy_is_damaged_is_read_from_another() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 3)
        for bookie in cluster.all:
            bookie.tells_end = True
        cluster.bookies["b1"].corrupt(0, 2)
        assert (await cluster.manager().recover(0)).last_entry_id == 2
        assert (await contents(cluster.manager()))[2] == b"2"

    simulate(main)


def test_a_bookie_that_comes_back_is_fenced_before_it_is_believed() -> None:
    """b3 misses the fence, but is asked for entries later. What it says must stay true."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 1)
        late = cluster.bookies["b3"]
        late.down = True
        tails = 0
        tail = cluster.bookies["b2"].tail

        async def tail_then_revive(ledger_id: int, *, fence: bool) -> object:
            nonlocal tails
            tails += 1
            answer = await tail(ledger_id, fence=fence)
            await turns(3)
            late.down = False
            return answer

        cluster.bookies["b2"].tail = tail_then_revive  # type: ignore[assignment,method-assign]
        await cluster.manager().recover(0)
        assert tails == 1
        assert late.is_fenced(0)

    simulate(main)


def test_a_dead_bookie_is_replaced_for_the_entries_that_recovery_writes() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 2)
        cluster.bookies["b2"].put(0, 2, b"x")
        cluster.add("b4")
        cluster.bookies["b1"].down = True
        metadata = await cluster.manager().recover(0)
        assert metadata.last_entry_id == 2
        assert metadata.ensembles[-1].first_entry_id <= 2
        assert "b4" in metadata.ensembles[-1].bookies
        assert cluster.bookies["b4"].entries(0)[2] == b"x"

    simulate(main)


def test_a_replacement_of_a_recovery_that_died_is_not_in_the_metadata() -> None:
    """Or the next recovery would believe the empty replacement that the entry is absent."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 1)
        ensembles = cluster.stored().ensembles
        for name in ("b1", "b2"):
            cluster.bookies[name].put(0, 1, b"confirmed by two")
        for name in ("b4", "b5"):
            cluster.add(name).held = True
        cluster.bookies["b1"].read_only = cluster.bookies["b3"].read_only = True
        dying = asyncio.ensure_future(cluster.manager().recover(0))
        await turns(60)
        assert not dying.done()
        dying.cancel()
        assert cluster.stored().ensembles == ensembles
        cluster.bookies["b1"].down = True
        cluster.bookies["b4"].held = cluster.bookies["b5"].held = False
        assert (await cluster.manager().recover(0)).last_entry_id == 1

    simulate(main)


def test_sealed_entries_are_present_though_no_bookie_has_their_bytes() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        await started(cluster, LedgerConfig(2, 2, 2), 20)
        # The LAC that bookies know is 18; the sealer followed the writer, up to 19.
        for bookie in cluster.all:
            await bookie.release(0, 19)
        metadata = await cluster.manager().recover(0)
        assert metadata.last_entry_id == 19
        assert metadata.length == 28, "that of the entries up to the LAC is known"

    simulate(main)


@given(st.data())
def test_whatever_bookies_lag_and_whatever_is_sealed_nothing_confirmed_is_cut(
    data: st.DataObject,
) -> None:
    """Each confirmed entry has an ack quorum of copies, or is in the table."""
    config = LedgerConfig(*data.draw(st.sampled_from([(3, 3, 2), (4, 3, 2), (2, 2, 1), (3, 2, 1)])))
    count = data.draw(st.integers(1, 9))
    sealed = data.draw(st.integers(-1, count - 1))

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, config.ensemble_size)
        await started(cluster, config, count)
        spare = config.write_quorum - config.ack_quorum
        lagging = data.draw(st.permutations(cluster.all))[:spare]
        for bookie in cluster.all:
            ledger = bookie._ledgers.get(0)
            if ledger is None:
                continue
            if bookie in lagging:
                reached = data.draw(st.integers(-1, count - 1))
                ledger.entries = {e: p for e, p in ledger.entries.items() if e <= reached}
            most = min(count - 1, max(ledger.entries, default=-1))
            ledger.last_confirmed = data.draw(st.integers(-1, max(most, -1)))
            ledger.confirmed_bytes = -1
            if data.draw(st.booleans()):  # it has heard of the seal
                await bookie.release(0, sealed)
        whole = [b"%d" % n for n in range(count)]
        metadata = await cluster.manager().recover(0)
        assert metadata.last_entry_id == count - 1
        for entry_id in range(sealed + 1, count):
            found = await cluster.manager().read(0, entry_id, entry_id, 1 << 20)
            assert found == [(entry_id, whole[entry_id])]

    simulate(main)


def test_entries_after_the_sealed_ones_are_recovered() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        await started(cluster, LedgerConfig(2, 2, 2), 8)
        for bookie in cluster.all:
            bookie._ledgers[0].last_confirmed = 2
            bookie._ledgers[0].confirmed_bytes = -1
        await cluster.all[0].release(0, 5)
        metadata = await cluster.manager().recover(0)
        assert metadata.last_entry_id == 7
        assert await cluster.manager().read(0, 6, 7, 100) == [(6, b"6"), (7, b"7")]

    simulate(main)


@pytest.mark.feature("F74")
def test_recoveries_at_the_same_time_agree() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2), 2)
        cluster.bookies["b2"].put(0, 2, b"x")
        found = await asyncio.gather(*(cluster.manager().recover(0) for _ in range(4)))
        assert len({m.encode() for m in found}) == 1
        assert found[0].last_entry_id == 2

    simulate(main)


def test_a_full_disk_does_not_stop_recovery() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 1)
        await started(cluster, LedgerConfig(), 3)
        cluster.all[0].full = True
        assert (await cluster.manager().recover(0)).last_entry_id == 2

    simulate(main)


def test_the_last_ensemble_says_what_is_confirmed_before_it() -> None:
    """The entries before it are not asked for: its bookies may never have had them."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        writer, writes = await started(cluster, LedgerConfig(2, 2, 2), 3)
        cluster.add("b3"), cluster.add("b4")
        cluster.bookies["b1"].down = cluster.bookies["b2"].down = True
        writer.append([b"3"])
        await turns()
        assert writes.confirmed[-1] == 3
        assert writer.metadata.ensembles[-1].first_entry_id == 3
        metadata = await cluster.manager().recover(0)
        assert (metadata.last_entry_id, metadata.length) == (3, 4)

    simulate(main)


def test_recovering_what_does_not_exist() -> None:
    async def main(sim: Simulation) -> None:
        with pytest.raises(NoSuchLedgerError):
            await Cluster(sim).manager().recover(0)

    simulate(main)


def test_a_writer_that_never_wrote_is_fenced_too() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        writer, writes = await started(cluster, LedgerConfig(), 0)
        assert (await cluster.manager().recover(0)).last_entry_id == -1
        writer.append([b"x"])
        await turns()
        assert isinstance(writes.errors[0], LedgerFencedError)
        with pytest.raises(LedgerFencedError):
            await writer.close()

    simulate(main)


def test_closing_after_another_broker_recovered() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        writer, _ = await started(cluster, LedgerConfig(), 2)
        recovered = await cluster.manager().recover(0)
        assert await writer.close() == recovered, "it ends where it was to end"

    simulate(main)


def test_closing_after_another_broker_found_another_end_is_fenced() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        writer, _ = await started(cluster, LedgerConfig(), 2)
        cluster.bookies["b1"].put(0, 2, b"never confirmed")
        assert (await cluster.manager().recover(0)).last_entry_id == 2
        with pytest.raises(LedgerFencedError):
            await writer.close()

    simulate(main)


def test_a_broker_that_lost_the_ledger_meanwhile_gives_up() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        await started(cluster, LedgerConfig(3, 3, 2))
        store = MemoryMetadataStore(cluster.tree)
        guard = Check("/guard", await store.put("/guard", b"mine"))

        class LostInBetween(GuardedMetadataStore):
            """Another broker takes the bundle once the ledger is in recovery."""

            async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
                versions = await super().commit(changes)
                await store.put("/guard", b"another's")
                return versions

        owner = cluster.manager().over(LostInBetween(store, guard, lambda: None))
        with pytest.raises(LedgerFencedError, match="another broker is the owner"):
            await asyncio.wait_for(owner.recover(0), 60)
        assert cluster.stored().state is LedgerState.IN_RECOVERY

    simulate(main)


class WithLengths(MemoryBookie):
    """Has the ledger's length with each entry, as BookKeeper's do."""

    async def length_through(self, ledger_id: int, entry_id: int) -> int:
        entries = self.entries(ledger_id)
        if entry_id not in entries:
            raise NoSuchEntryError(f"{self.bookie_id}: no entry {ledger_id}:{entry_id}")
        return 1000 + sum(len(entries[e]) for e in entries if e <= entry_id)


def test_a_length_that_metadata_do_not_have_is_with_the_entries() -> None:
    """That of a last ensemble, of which no entry was confirmed as far as bookies know."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        for number in range(1, 4):
            cluster.bookies[f"b{number}"] = WithLengths(f"b{number}", keeps_length=False)
        writer, _ = await started(cluster, LedgerConfig(2, 2, 2), 2)
        first, second = writer.metadata.ensembles[0].bookies
        [spare] = {"b1", "b2", "b3"} - {first, second}
        store = MetadataLedgerStore(MemoryMetadataStore(cluster.tree))
        stored = await store.get(0)
        assert stored is not None
        change = decisions.change_ensemble(
            stored.metadata.ensembles[0], Ensemble(2, -1, (first, spare))
        )
        await store.update(stored, change)
        cluster.bookies[first].lose(0, 1)
        metadata = await cluster.manager().recover(0)
        assert (metadata.last_entry_id, metadata.length) == (1, 1002), "the other copy had it"

    simulate(main)


class Remote(MemoryBookie):
    """Who asks it while it is down waits."""

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        if self.down:
            await asyncio.sleep(2)
        return await super().read(ledger_id, first_entry_id, last_entry_id, max_bytes)


def test_bookies_that_are_away_are_not_asked_for_each_entry_to_measure_a_ledger() -> None:
    """They have the entries before the last ensemble, which a recovery does not need."""

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        for number in range(1, 6):
            cluster.bookies[f"b{number}"] = Remote(f"b{number}", keeps_length=False)
        writer, _ = await started(cluster, LedgerConfig(2, 2, 2), 100)
        first, second = writer.metadata.ensembles[0].bookies
        others = sorted(cluster.bookies.keys() - {first, second})
        store = MetadataLedgerStore(MemoryMetadataStore(cluster.tree))
        for before, after in [
            (Ensemble(0, 0, (first, second)), Ensemble(90, -1, (others[0], second))),
            (Ensemble(90, -1, (others[0], second)), Ensemble(100, -1, (others[1], others[2]))),
        ]:
            stored = await store.get(0)
            assert stored is not None
            await store.update(stored, decisions.change_ensemble(before, after))
        for entry_id in range(90, 100):
            cluster.bookies[others[0]].put(0, entry_id, b"%d" % entry_id)
        for name in (first, second):
            cluster.bookies[name].down = True
        began = asyncio.get_running_loop().time()
        metadata = await cluster.manager().recover(0)
        assert (metadata.last_entry_id, metadata.length) == (99, 20), "what can be read counts"
        assert asyncio.get_running_loop().time() - began < 10

    simulate(main)
