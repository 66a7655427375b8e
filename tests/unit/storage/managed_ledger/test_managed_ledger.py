"""A topic partition over bookies in memory: order, failures, roll-over, positions, deletion."""

from __future__ import annotations

import asyncio
import random

import pytest

from pulsark.errors import (
    ClientError,
    EntrySealedError,
    LedgerFencedError,
    MetadataError,
    NoSuchLedgerError,
    ServerError,
    StorageError,
    StorageFullError,
)
from pulsark.metadata.paths import REMOVED_LEDGERS
from pulsark.storage.managed_ledger.deletion import delete_noted
from pulsark.storage.managed_ledger.ledger_runs import NOTHING_FOLDED
from pulsark.storage.managed_ledger.managed_ledger import (
    LedgerView,
    ManagedLedger,
    ManagedLedgerConfig,
    delete_managed_ledger,
    read_record,
)
from pulsark.wire.entry import build_entry
from pulsark.wire.position import EARLIEST, LATEST, Position
from pulsark.wire.pulsar_pb2 import MessageMetadata
from tests.sim.simulation import Simulation
from tests.support.ledgers import Appends, Cluster, read_all, settle, simulate, turns
from tests.support.lost_answers import ForgetfulStore

PATH = "/managed-ledgers/t/n/persistent/x"
QUICK = ManagedLedgerConfig(max_entries=5, min_age_ms=0)
THREE = ManagedLedgerConfig(3, 3, 2, max_entries=5, min_age_ms=0)


async def put(managed: ManagedLedger, *entries: int) -> None:
    """Append and wait a little; contexts are the numbers."""
    for number in entries:
        managed.append(b"%d" % number, number)
    await turns(60)


def numbers(found: list[tuple[Position, bytes]]) -> list[int]:
    return [int(entry) for _, entry in found]


def shape(managed: LedgerView) -> list[tuple[int, int, int, bool]]:
    return [(i.ledger_id, i.entries, i.size, i.open) for i in managed.ledgers()]


# Appending.


def test_appends_of_one_turn_are_one_run_and_nothing_happens_before_the_first() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        assert managed.last_confirmed == Position(-1, -1)
        assert managed.ledgers() == []
        assert cluster.tree.children("/ledgers") == []
        for turn in range(3):
            for n in range(4):
                managed.append(b"x" * n, (turn, n))
            await asyncio.sleep(0)
        assert appends.contexts == []
        await turns()
        # Those of the first turns waited for the ledger, and went out together.
        assert appends.runs == [12]
        assert appends.contexts == [(turn, n) for turn in range(3) for n in range(4)]
        managed.append(b"a", 1)
        managed.append(b"b", 2)
        await turns()
        assert appends.runs == [12, 2]
        assert managed.last_confirmed == Position(0, 13)
        assert shape(managed) == [(0, 14, 20, True)]
        assert (managed.entries, managed.total_size) == (14, 20)

    simulate(main)


def test_part_of_a_run_may_be_confirmed() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim, 2), Appends()
        managed = await cluster.open(appends, ManagedLedgerConfig(2, 1, 1))
        await put(managed, 0)
        slow = cluster.bookies[cluster.stored().ensembles[0].bookies[0]]
        slow.held = True
        await put(managed, 1, 2, 3, 4)
        assert appends.contexts == [0, 1]
        slow.release_held(1)
        assert appends.contexts == [0, 1, 2, 3]
        slow.release_held()
        assert appends.contexts == [0, 1, 2, 3, 4]
        assert numbers(await read_all(managed)) == [0, 1, 2, 3, 4]

    simulate(main)


def test_the_listener_may_append() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)

        class Echo(Appends):
            def entries_confirmed(self, *args: object) -> None:
                appends.entries_confirmed(*args)  # type: ignore[arg-type]
                if len(appends.contexts) < 5:
                    managed.append(b"again", len(appends.contexts))

        managed.tell(Echo())
        managed.append(b"first", 0)
        await turns(100)
        assert appends.contexts == [0, 1, 2, 3, 4]

    simulate(main)


# Roll-over.


@pytest.mark.feature("F75")
def test_full_ledgers_are_closed_and_reads_cross_their_borders() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends, QUICK)
        for n in range(0, 24, 2):
            await put(managed, n, n + 1)
        assert appends.contexts == list(range(24))
        assert [(entries, is_open) for _, entries, _, is_open in shape(managed)] == [
            (6, False)
        ] * 4 + [(0, True)]
        assert numbers(await read_all(managed)) == list(range(24))
        assert managed.total_size == 10 + 2 * 14
        for ledger_id in range(4):
            assert cluster.stored(ledger_id).is_closed
        assert numbers(await managed.read(Position(1, 4), 5, 1000)) == [10, 11, 12, 13, 14]
        assert numbers(await managed.read(Position(1, 99), 2, 1000)) == [12, 13]
        assert numbers(await managed.read(Position(1, 4), 100, 4)) == [10, 11]
        assert numbers(await managed.read(EARLIEST, 1, 0)) == [0]
        assert await managed.read(LATEST, 10, 1000) == []
        assert await managed.read(managed.next_position(managed.last_confirmed), 10, 1000) == []

    simulate(main)


def test_no_entry_of_the_next_ledger_is_sent_before_all_of_the_old_one_are_confirmed() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends, QUICK)
        await put(managed, 0)
        bookie = cluster.all[0]
        bookie.held = True
        for n in range(1, 12):
            await put(managed, n)
        assert {run.ledger_id for run, *_ in bookie._queue} == {0}
        bookie.held = False
        bookie.release_held()
        await turns(60)
        assert appends.contexts == list(range(12))
        assert [run.ledger_id for run in bookie.runs][-1] == 1

    simulate(main)


@pytest.mark.feature("F75")
@pytest.mark.parametrize(
    ("config", "appended", "seconds", "rolls"),
    [
        (ManagedLedgerConfig(max_entries=3), 10, 1, False),
        (ManagedLedgerConfig(max_entries=3), 10, 600, True),
        (ManagedLedgerConfig(max_entries=100), 10, 600, False),
        (ManagedLedgerConfig(max_bytes=5), 10, 600, True),
        (ManagedLedgerConfig(), 1, 240 * 60 - 1, False),
        (ManagedLedgerConfig(), 1, 240 * 60, True),
    ],
)
def test_when_a_ledger_is_full(
    config: ManagedLedgerConfig, appended: int, seconds: int, rolls: bool
) -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends, config)
        await put(managed, *range(appended))
        await asyncio.sleep(seconds + 1 if rolls else seconds - 1)
        await managed.close_ledger(only_full=True)
        assert managed.ledgers()[-1].open is not rolls
        await put(managed, 99)
        assert len(managed.ledgers()) == 1 + rolls
        assert len(appends.contexts) == appended + 1

    simulate(main)


def test_while_a_ledger_rolls_over_its_bytes_are_counted() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends, QUICK)
        await put(managed, *range(4))
        managed.append(b"4", 4)
        seen = set()
        for _ in range(60):
            await asyncio.sleep(0)
            seen.add((managed.total_size, sum(size for _, _, size, _ in shape(managed))))
        assert len(managed.ledgers()) == 2, "it rolled over"
        assert seen == {(4, 4), (5, 5)}

    simulate(main)


def test_the_bytes_of_a_ledger_that_failed_are_counted_while_it_is_recovered() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        await put(managed, 0, 1)
        bookie = cluster.all[0]
        bookie.down = True
        managed.append(b"2", 2)
        for _ in range(60):
            await asyncio.sleep(0)
            assert managed.total_size == 2
        assert [context for context, _ in appends.failed] == [2]
        bookie.down = False
        await settle(managed)
        assert shape(managed) == [(0, 2, 2, False)]
        assert managed.total_size == 2

    simulate(main)


def test_appends_go_on_while_a_roll_over_cannot_happen() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends, QUICK)
        await put(managed, *range(4))
        cluster.bookies["b0"] = cluster.bookies.pop("b1")
        bookies = dict(cluster.bookies)
        cluster.bookies.clear()
        await put(managed, 4)
        await put(managed, 5)
        assert appends.contexts == [0, 1, 2, 3, 4, 5]
        cluster.bookies.update(bookies)
        await asyncio.sleep(11)
        await put(managed, 6)
        assert appends.failed == []
        assert len(managed.ledgers()) == 2

    simulate(main)


# Failures.


@pytest.mark.feature("F75")
def test_after_a_failure_appends_fail_in_order_and_later_ones_go_to_a_new_ledger() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim, 3), Appends()
        managed = await cluster.open(appends, ManagedLedgerConfig(3, 3, 2))
        await put(managed, 0, 1)
        for bookie in cluster.all:
            bookie.held = True
        await put(managed, 2, 3)
        await put(managed, 4)
        assert appends.failed == []
        cluster.bookies["b1"].read_only = cluster.bookies["b2"].read_only = True
        for name in ("b3", "b1", "b2"):
            cluster.bookies[name].held = False
            cluster.bookies[name].release_held()
        assert appends.failed_contexts == [2, 3, 4]
        assert all(type(error) is StorageError for _, error in appends.failed)
        cluster.bookies["b1"].read_only = cluster.bookies["b2"].read_only = False
        await settle(managed)
        await put(managed, 5)
        assert appends.contexts == [0, 1, 5]
        # b3 took the failed ones before the others refused: now they are part of the topic.
        assert appends.recovered == [(0, 2, 3)]
        assert shape(managed) == [(0, 5, 5, False), (1, 1, 1, True)]
        assert numbers(await read_all(managed)) == [0, 1, 2, 3, 4, 5]
        assert managed.entries_between(Position(0, 1), managed.last_confirmed) == 4

    simulate(main)


@pytest.mark.parametrize("stored", range(4))
def test_appends_wait_for_a_bookie_that_went_away_whether_it_stored_them_or_not(
    stored: int,
) -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        bookie = cluster.all[0]
        managed = await cluster.open(appends)
        await put(managed, 0)
        bookie.held = True
        await put(managed, 1, 2)
        await put(managed, 3)
        await put(managed, 4)
        bookie.leave(stored)
        await put(managed, 5)
        await asyncio.sleep(5)
        assert (appends.contexts, appends.failed) == ([0], [])
        bookie.come_back()
        await settle(managed)
        assert (appends.contexts, appends.failed) == ([0, 1, 2, 3, 4, 5], [])
        assert appends.recovered == []
        assert numbers(await read_all(managed)) == [0, 1, 2, 3, 4, 5]
        assert list(map(int, appends.confirmed.values())) == [0, 1, 2, 3, 4, 5]
        await put(managed, 6)
        assert appends.contexts[-1] == 6
        assert dict(await read_all(managed)) == appends.confirmed

    simulate(main)


def test_the_first_append_waits_for_a_bookie_that_is_away() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        cluster.all[0].leave()
        managed = await cluster.open(appends)
        await put(managed, 0, 1)
        assert (appends.contexts, appends.failed) == ([], [])
        cluster.all[0].come_back()
        await settle(managed)
        assert (appends.contexts, appends.failed) == ([0, 1], [])

    simulate(main)


def test_if_the_end_stays_unknown_appends_that_waited_fail_in_order() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        bookie = cluster.all[0]
        managed = await cluster.open(appends)
        await put(managed, 0)
        bookie.leave()
        await put(managed, 1)
        await put(managed, 2)
        bookie.down = True
        bookie.come_back()
        await turns()
        assert (appends.contexts, appends.failed_contexts) == ([0], [1, 2])
        bookie.down = False
        await settle(managed)
        await put(managed, 3)
        assert (appends.contexts, appends.failed_contexts) == ([0, 3], [1, 2])

    simulate(main)


def test_failed_appends_that_no_bookie_stored_do_not_exist() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        await put(managed, 0)
        cluster.all[0].read_only = True
        await put(managed, 1)
        assert not managed.is_settled
        assert appends.ends == []
        cluster.all[0].read_only = False
        await settle(managed)
        assert managed.is_settled
        await put(managed, 2)
        assert (appends.contexts, appends.failed_contexts, appends.recovered) == ([0, 2], [1], [])
        assert appends.ends == [0]
        assert numbers(await read_all(managed)) == [0, 2]
        assert managed.last_confirmed == Position(1, 0)

    simulate(main)


def test_a_full_disk_fails_at_once_and_heals_by_itself() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        await put(managed, 0)
        assert managed.full_error() is None
        cluster.all[0].full = True
        await put(managed, 1)
        assert appends.failed_contexts == [1]
        assert isinstance(managed.full_error(), StorageFullError)
        for n in range(2, 50):
            await put(managed, n)
        # Within the second after the failure nothing was tried again: no new ledgers.
        assert cluster.tree.children("/ledgers") == ["0"]
        assert appends.failed_contexts == list(range(1, 50))
        assert all(isinstance(error, StorageFullError) for _, error in appends.failed)
        for n in range(50, 60):
            await asyncio.sleep(1.1)
            await put(managed, n)
        assert appends.failed_contexts == list(range(1, 60))
        assert numbers(await read_all(managed)) == [0]
        cluster.all[0].full = False
        await asyncio.sleep(2.1)
        assert managed.full_error() is None
        await put(managed, 60)
        assert appends.contexts == [0, 60]
        # Ledgers of vain attempts are gone again.
        await settle(managed)
        assert len(managed.ledgers()) == 2
        assert len(cluster.tree.children("/ledgers")) == 2

    simulate(main)


def test_while_the_end_is_unknown_appends_fail_and_recovery_is_tried_again() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        await put(managed, 0)
        cluster.all[0].down = True
        await put(managed, 1)
        await put(managed, 2)
        await asyncio.sleep(5)
        await put(managed, 3)
        assert appends.failed_contexts == [1, 2, 3]
        cluster.all[0].down = False
        await asyncio.sleep(2)
        # Nobody appended, and the ledger is closed all the same.
        assert cluster.stored().is_closed
        await put(managed, 4)
        assert appends.contexts == [0, 4]

    simulate(main)


@pytest.mark.parametrize("heals_at_once", [True, False])
def test_a_failure_during_a_roll_over_keeps_the_order(heals_at_once: bool) -> None:
    async def main(sim: Simulation) -> None:
        for step in range(16):
            cluster, appends = Cluster(sim), Appends()
            managed = await cluster.open(appends, QUICK)
            await put(managed, 0, 1, 2, 3)
            cluster.all[0].held = True
            for n in range(4, 8):
                managed.append(b"%d" % n, n)
            await turns(step)
            cluster.all[0].read_only = True
            cluster.all[0].release_held()
            cluster.all[0].held = False
            cluster.all[0].read_only = not heals_at_once
            await turns(step % 3)
            await put(managed, 8)
            assert numbers(await read_all(managed)) == appends.contexts
            cluster.all[0].read_only = False
            await settle(managed)
            await put(managed, 9)
            told = sorted(appends.contexts + appends.failed_contexts)
            assert told == list(range(10))
            assert appends.contexts[-1] == 9
            assert appends.recovered == []
            assert numbers(await read_all(managed)) == appends.contexts
            await managed.close()

    simulate(main)


def test_the_metadata_store_fails_while_a_ledger_is_opened() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        store = managed._stored.metadata
        right = store.put

        async def broken(*args: object, **kwargs: object) -> int:
            raise MetadataError("away")

        store.put = broken  # type: ignore[method-assign]
        await put(managed, 0)
        assert [type(e) for _, e in appends.failed] == [MetadataError]
        store.put = right  # type: ignore[method-assign]
        await asyncio.sleep(1.1)
        await put(managed, 1)
        assert appends.contexts == [1]

    simulate(main)


# Owners.


def test_a_new_owner_stops_the_old_one_for_good() -> None:
    async def main(sim: Simulation) -> None:
        cluster, old_appends, appends = Cluster(sim), Appends(), Appends()
        old = await cluster.open(old_appends)
        await put(old, 0, 1)
        new = await cluster.open(appends)
        assert new.last_confirmed == Position(0, 1)
        await put(new, 2)
        await put(old, 3)
        await put(old, 4)
        assert old.is_fenced
        assert [type(e) for _, e in old_appends.failed] == [LedgerFencedError] * 2
        assert numbers(await read_all(new)) == [0, 1, 2]
        with pytest.raises(LedgerFencedError):
            await old.terminate()
        with pytest.raises(LedgerFencedError):
            await old.delete()
        await old.close()
        assert not new.is_fenced

    simulate(main)


def test_an_owner_without_an_open_ledger_is_stopped_by_the_record() -> None:
    async def main(sim: Simulation) -> None:
        cluster, old_appends = Cluster(sim), Appends()
        old = await cluster.open(old_appends)
        new = await cluster.open()
        await put(new, 0)
        await put(old, 1)
        assert old.is_fenced
        assert old_appends.failed_contexts == [1]
        # The ledger that it had created meanwhile is not left behind.
        assert len(cluster.tree.children("/ledgers")) == 1

    simulate(main)


@pytest.mark.parametrize("seed", range(15))
def test_the_last_owner_has_everything_and_ids_are_never_used_twice(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        rng = random.Random(seed)
        cluster = Cluster(sim, 3)
        told: dict[Position, bytes] = {}
        number = 0
        owners: list[tuple[ManagedLedger, Appends]] = []
        for _ in range(6):
            appends = Appends()
            owners.append((await cluster.open(appends, THREE), appends))
            for _ in range(rng.randint(0, 12)):
                for managed, _ in owners[-2:]:
                    managed.append(b"%d" % number, number)
                    number += 1
                await turns(rng.randint(0, 9))
            if rng.random() < 0.3:
                await owners[-1][0].close()
        await turns(100)
        last = owners[-1][0]
        reader = await cluster.open(Appends(), THREE)
        found = await read_all(reader)
        for _, appends in owners:
            for position, entry in appends.confirmed.items():
                assert told.setdefault(position, entry) == entry
        assert dict(found).items() >= told.items()
        assert len({position for position, _ in found}) == len(found)
        assert [p for p, _ in found] == sorted(p for p, _ in found)
        assert last.entries == len(found)

    simulate(main, seed)


def test_restarts_continue_with_new_ids_and_a_clean_close_needs_no_recovery() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        for n in range(4):
            appends = Appends()
            managed = await cluster.open(appends)
            assert managed.entries == n
            await put(managed, n)
            assert appends.confirmed == {Position(n, 0): b"%d" % n}
            await managed.close()
            assert not cluster.all[0].is_fenced(n)
            managed.append(b"late", "late")
            await turns()
            assert appends.failed_contexts == ["late"]
        assert numbers(await read_all(await cluster.open())) == [0, 1, 2, 3]

    simulate(main)


def test_close_confirms_what_was_appended_before() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        managed.append(b"0", 0)
        await managed.close()
        assert appends.contexts == [0]
        managed = await cluster.open(appends)
        await put(managed, 1)
        managed.append(b"2", 2)
        closing = asyncio.ensure_future(managed.close())
        await turns(3)
        managed.append(b"3", 3)
        await closing
        await turns()
        assert appends.contexts == [0, 1, 2]
        assert appends.failed_contexts == [3]
        await managed.close()

    simulate(main)


def test_a_close_over_dead_bookies_tells_all_callers_and_is_recovered_later() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        await put(managed, 0)
        cluster.all[0].down = True
        managed.append(b"1", 1)
        await managed.close()
        assert appends.failed_contexts == [1]
        with pytest.raises(StorageError):
            await cluster.open()
        cluster.all[0].down = False
        assert numbers(await read_all(await cluster.open())) == [0]

    simulate(main)


def test_a_change_whose_caller_is_cancelled_is_finished_all_the_same() -> None:
    async def main(sim: Simulation) -> None:
        for step in range(10):
            cluster, appends = Cluster(sim), Appends()
            managed = await cluster.open(appends)
            await put(managed, 0)
            change = asyncio.ensure_future(managed.change_properties(lambda _: {"a": "b"}))
            await turns(step)
            change.cancel()
            await put(managed, 1)
            await managed.change_properties(lambda _: {})
            assert not managed.is_fenced
            assert appends.contexts == [0, 1]

    simulate(main)


def test_properties_added_at_the_same_time_are_all_kept() -> None:
    async def main(sim: Simulation) -> None:
        managed = await Cluster(sim).open()
        changes = [
            managed.change_properties(lambda before, key=key: {**before, key: ""}) for key in "abc"
        ]
        await asyncio.gather(*changes)
        assert managed.record.properties == dict.fromkeys("abc", "")

    simulate(main)


# Positions.


def test_positions_of_an_empty_topic() -> None:
    async def main(sim: Simulation) -> None:
        managed = await Cluster(sim).open()
        assert managed.last_confirmed == Position(-1, -1)
        assert managed.first_position() == Position(-1, 0)
        assert managed.next_position(EARLIEST) == Position(-1, 0)
        assert managed.valid_position_at_or_after(LATEST) == Position(-1, 0)
        assert managed.previous_position(LATEST) == EARLIEST
        assert managed.entries_between(EARLIEST, LATEST) == 0
        assert await managed.read(EARLIEST, 10, 10) == []

    simulate(main)


def test_positions_of_a_live_topic_are_those_of_its_entries() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=QUICK)
        for n in range(13):
            await put(managed, n)
            entries = [position for position, _ in await read_all(managed)]
            assert managed.first_position() == entries[0]
            assert managed.last_confirmed == entries[-1]
            walk, position = [], EARLIEST
            while (position := managed.next_position(position)) <= managed.last_confirmed:
                walk.append(position)
            assert walk == entries
            back = [LATEST]
            while (position := managed.previous_position(back[-1])) > EARLIEST:
                back.append(position)
            assert back[:0:-1] == entries
            assert managed.entries_between(EARLIEST, LATEST) == managed.entries == n + 1
        last = managed.last_confirmed
        after = Position(last.ledger_id, last.entry_id + 1)
        assert managed.next_position(last) == managed.valid_position_at_or_after(LATEST) == after

    simulate(main)


# Trimming, terminating, deleting.


def test_trim_removes_whole_ledgers_before_a_position() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=QUICK)
        for n in range(17):
            await put(managed, n)
        assert [i.ledger_id for i in managed.ledgers()] == [0, 1, 2, 3]
        await managed.trim(Position(1, 3))
        assert [i.ledger_id for i in managed.ledgers()] == [1, 2, 3]
        assert cluster.tree.children("/ledgers") == ["1", "2", "3"]
        assert cluster.all[0].ledger_ids() == [1, 2, 3]
        assert managed.first_position() == Position(1, 0)
        assert numbers(await managed.read(Position(0, 2), 2, 100)) == [5, 6]
        assert managed.total_size == 5 + 10 + 4
        # Not the open ledger, whatever is asked.
        await managed.trim(LATEST)
        assert [i.ledger_id for i in managed.ledgers()] == [3]
        again = await cluster.open(config=QUICK)
        assert numbers(await read_all(again)) == [15, 16]

    simulate(main)


def test_a_topic_that_was_trimmed_to_nothing_remembers_where_it_was() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open()
        await put(managed, 0, 1, 2)
        await managed.close()
        managed = await cluster.open()
        await managed.trim(LATEST)
        assert managed.ledgers() == []
        assert cluster.tree.children("/ledgers") == []
        assert managed.last_confirmed == Position(0, 2)
        assert managed.first_position() == Position(0, 3)
        managed = await cluster.open()
        assert managed.last_confirmed == Position(0, 2)
        await put(managed, 3)
        assert managed.last_confirmed == Position(1, 0)
        assert managed.entries_between(Position(0, 2), managed.last_confirmed) == 1

    simulate(main)


def test_a_trim_that_finds_nothing_writes_nothing() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        managed = await cluster.open(config=THREE)
        for n in range(7):
            await put(managed, n)
        managed._stored.metadata = store = ForgetfulStore(cluster.tree, "/")
        first = managed.ledgers()[0]
        for before in (Position(-1, -1), Position(first.ledger_id, first.entries - 1)):
            await managed.trim(before)
            assert store.writes == 0
        await managed.trim(Position(first.ledger_id, first.entries))
        assert store.writes > 0

    simulate(main)


def test_a_read_goes_on_behind_a_ledger_that_is_trimmed_under_it() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=QUICK)
        for n in range(12):
            await put(managed, n)
        for step in range(6):
            reading = asyncio.ensure_future(managed.read(EARLIEST, 100, 1000))
            await turns(step)
            await managed.trim(Position(step // 2, 99))
            found = numbers(await reading)
            assert found == list(range(found[0], 12))

    simulate(main)


def test_a_read_of_a_ledger_that_is_lost_and_not_trimmed_fails() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=QUICK)
        for n in range(12):
            await put(managed, n)
        lost = managed.ledgers()[1].ledger_id
        await cluster.manager().delete(lost)
        managed = await cluster.open(config=QUICK)  # nothing of it is in memory
        found = numbers(await managed.read(EARLIEST, 100, 1000))
        assert found == list(range(len(found))), "what comes before it is there"
        for _ in range(2):
            with pytest.raises(NoSuchLedgerError):
                await managed.read(Position(lost, 0), 100, 1000)

    simulate(main)


def test_ledgers_whose_removal_failed_are_removed_later() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 3)
        managed = await cluster.open(config=THREE)
        for n in range(7):
            await put(managed, n)
        cluster.bookies["b2"].down = True
        await managed.trim(Position(1, 0))
        assert [i.ledger_id for i in managed.ledgers()] == [1]
        assert cluster.bookies["b2"].entries(0) != {}
        await managed.close()
        cluster.bookies["b2"].down = False
        managed = await cluster.open(config=THREE)
        await turns()
        assert cluster.tree.children("/ledgers") == ["1"]
        assert all(bookie.entries(0) == {} for bookie in cluster.all)
        record = await read_record(PATH, managed._stored.metadata)
        assert record is not None
        assert record.removing == ()

    simulate(main)


def test_a_terminated_topic_can_be_read_and_takes_nothing() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        await put(managed, 0)
        managed.append(b"1", 1)
        assert await managed.terminate() == Position(0, 1)
        assert managed.is_terminated
        await put(managed, 2)
        assert await managed.terminate() == Position(0, 1)
        again = await cluster.open(appends)
        assert again.is_terminated
        assert not again.is_fenced
        await put(again, 3)
        assert appends.contexts == [0, 1]
        assert appends.failed_contexts == [2, 3]
        for _, error in appends.failed:
            assert isinstance(error, ClientError)
            assert error.code == ServerError.TopicTerminatedError
        assert numbers(await read_all(again)) == [0, 1]
        await again.close()
        assert again.is_terminated

    simulate(main)


def test_a_deleted_topic_leaves_nothing_and_its_successor_has_another_id() -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends, QUICK)
        for n in range(8):
            await put(managed, n)
        await managed.delete()
        assert cluster.tree.children("/") == ["counters"]
        assert cluster.all[0].ledger_ids() == []
        await put(managed, 99)
        assert appends.failed_contexts == [99]
        successor = await cluster.open()
        assert successor.topic_id != managed.topic_id
        await put(successor, 0)
        assert successor.last_confirmed.ledger_id == 2
        # A second deletion of the first one does not hit its successor.
        await managed.delete()
        assert numbers(await read_all(successor)) == [0]

    simulate(main)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_topic_that_is_about_to_be_deleted_takes_nothing(is_stored: bool) -> None:
    async def main(sim: Simulation) -> None:
        cluster, appends = Cluster(sim), Appends()
        managed = await cluster.open(appends)
        await put(managed, 0)
        store = ForgetfulStore(cluster.tree, PATH)
        store.loses = 0 if is_stored else 1
        managed._stored.metadata = store
        if is_stored:
            await managed.begin_deletion()
        else:
            with pytest.raises(MetadataError):
                await managed.begin_deletion()
        await put(managed, 1)
        assert (appends.contexts, appends.failed_contexts) == ([0], [1])
        with pytest.raises(StorageError, match="is deleted"):
            await managed.change_properties(lambda before: before)

    simulate(main)


def test_a_deletion_does_not_wait_for_a_bookie_that_is_away() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open()
        await put(managed, 0)
        cluster.all[0].down = True
        await managed.delete()
        assert cluster.tree.children("/managed-ledgers") == []
        metadata, manager = managed._stored.metadata, cluster.manager()
        assert cluster.tree.children(REMOVED_LEDGERS) == ["0"]
        await delete_noted(manager, metadata)
        assert cluster.tree.children(REMOVED_LEDGERS) == ["0"], "the bookie still cannot be told"
        cluster.all[0].down = False
        new = await cluster.open()
        assert new.topic_id != managed.topic_id
        assert new.entries == 0
        await delete_noted(manager, metadata)
        assert cluster.all[0].ledger_ids() == []
        assert cluster.tree.children("/ledgers") == cluster.tree.children(REMOVED_LEDGERS) == []

    simulate(main)


def test_a_deletion_that_was_interrupted_goes_on_at_the_next_opening() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open()
        await put(managed, 0)
        store = ForgetfulStore(cluster.tree, PATH)
        store.loses = 1
        with pytest.raises(MetadataError):
            await delete_managed_ledger(PATH, cluster.manager(), store)
        assert await read_record(PATH, store) is None
        new = await cluster.open()
        assert new.topic_id != managed.topic_id
        assert cluster.all[0].ledger_ids() == []
        await delete_managed_ledger(PATH, cluster.manager(), store)
        assert cluster.tree.children("/managed-ledgers") == []

    simulate(main)


def test_the_topic_epoch_outlives_an_opening_and_a_change_of_properties() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open()
        assert managed.record.topic_epoch is None
        await managed.set_topic_epoch(3)
        await managed.change_properties(lambda _: {"owner": "me"})
        await managed.close()
        again = await cluster.open()
        assert (again.record.topic_epoch, again.record.properties) == (3, {"owner": "me"})

    simulate(main)


def test_properties_and_the_view_of_a_topic_that_is_not_loaded() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=QUICK)
        assert managed.record.properties == {}
        await managed.change_properties(lambda _: {"owner": "me"})
        for n in range(7):
            await put(managed, n)
        store = managed._stored.metadata
        record = await read_record(PATH, store)
        assert record is not None
        assert record.topic_id == managed.topic_id
        assert record.properties == {"owner": "me"}
        view = LedgerView(record.ledger_list(NOTHING_FOLDED), cluster.manager())
        # Of the ledger that is open it knows nothing.
        assert shape(view) == [(0, 5, 5, False), (1, 0, 0, True)]
        assert numbers(await read_all(view)) == [0, 1, 2, 3, 4]
        await managed.close()
        record = await read_record(PATH, store)
        assert record is not None
        assert record.ledger_list(NOTHING_FOLDED).entries == 7
        again = await cluster.open()
        assert again.record.properties == {"owner": "me"}
        assert again.record.created_ms == managed.record.created_ms
        assert await read_record("/managed-ledgers/none", store) is None

    simulate(main)


def test_sealed_entries_are_told_as_such() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open()
        await put(managed, *range(6))
        await cluster.all[0].release(0, 2)
        with pytest.raises(EntrySealedError):
            await managed.read(EARLIEST, 10, 100)
        assert numbers(await managed.read(Position(0, 3), 10, 100)) == [3, 4, 5]

    simulate(main)


# Publish time.


def entry(ms: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=ms)
    return build_entry(metadata, b"")


def test_entries_are_found_by_publish_time_over_all_ledgers() -> None:
    async def main(sim: Simulation) -> None:
        managed = await Cluster(sim).open(config=QUICK)
        assert await managed.find_by_publish_time(0) == Position(-1, 0)
        times = [100 + 10 * n for n in range(23)]
        for ms in times:
            managed.append(entry(ms), ms)
            await turns(20)
        positions = [position for position, _ in await read_all(managed)]
        for ms in range(90, 340, 5):
            expected = [p for p, t in zip(positions, times, strict=True) if t >= ms]
            end = managed.next_position(managed.last_confirmed)
            assert await managed.find_by_publish_time(ms) == (expected or [end])[0]

    simulate(main)


def test_a_search_never_skips_an_entry_that_is_only_a_little_out_of_order() -> None:
    async def main(sim: Simulation) -> None:
        rng = random.Random(5)
        managed = await Cluster(sim).open()
        times = [1000 + 10 * n + rng.randint(-200, 200) for n in range(300)]
        for ms in times:
            managed.append(entry(ms), ms)
        await turns()
        for ms in range(900, 4300, 70):
            found = await managed.find_by_publish_time(ms)
            skipped = [t for t in times[: found.entry_id] if t >= ms]
            assert skipped == []
            # Nor does it go back much further than it must.
            first = next((i for i, t in enumerate(times) if t >= ms), len(times))
            assert found.entry_id == first

    simulate(main)


def test_a_search_over_entries_that_are_not_messages_ends() -> None:
    async def main(sim: Simulation) -> None:
        managed = await Cluster(sim).open()
        await put(managed, *range(10))
        assert await managed.find_by_publish_time(5) == Position(0, 0)

    simulate(main)
