"""A list of ledgers that grows for ever in a record that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pulsark.errors import MetadataError, NoSuchLedgerError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import LEDGER_RUNS
from pulsark.metadata.store import ANY_VERSION
from pulsark.storage.managed_ledger import ledger_runs
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.ledger_runs import decode_run
from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerConfig
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord, decode_record, read_ledgers
from pulsark.wire.position import EARLIEST, Position
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, read_all, settle, simulate, turns
from tests.support.lost_answers import ForgetfulStore

PATH = "/managed-ledgers/t/n/persistent/x"
ONE_EACH = ManagedLedgerConfig(max_entries=1, min_age_ms=0)
SMALL, LARGE = 4, 16


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ledger_runs, "SMALL_RUN", SMALL)
    monkeypatch.setattr(ledger_runs, "LARGE_RUN", LARGE)
    return


async def put(managed: ManagedLedger, *entries: int) -> None:
    for number in entries:
        managed.append(b"%d" % number, number)
        await turns(60)


def record(cluster: Cluster) -> ManagedLedgerRecord:
    found = cluster.tree.get(PATH)
    assert found is not None
    return decode_record(PATH, found.value)


def documents(cluster: Cluster) -> list[str]:
    names = []
    for topic_id in cluster.tree.children(LEDGER_RUNS):
        names += cluster.tree.children(f"{LEDGER_RUNS}/{topic_id}")
    return sorted(names)


def check(cluster: Cluster, managed: ManagedLedger, count: int, first: int = 0) -> None:
    """The record is small, and names what is there."""
    now = record(cluster)
    assert len(now.ledgers) <= 2 * SMALL + 1
    small = [line for line in now.folded if line.ledgers < LARGE]
    assert len(small) <= 2 * LARGE // SMALL
    assert documents(cluster) == sorted(line.name for line in now.folded)
    ids = [info.ledger_id for info in managed.ledgers()]
    assert ids == sorted(set(ids))
    assert managed.entries == count - first
    places = [managed.position_at(rank) for rank in range(count - first)]
    assert places == sorted(places)
    for rank, place in enumerate(places):
        assert managed.entries_between(EARLIEST, place) == rank + 1
        assert managed.ledger(place.ledger_id) is not None


async def numbers(managed: ManagedLedger) -> list[int]:
    return [int(entry) for _, entry in await read_all(managed)]


def test_a_topic_with_many_ledgers_has_a_short_record() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=ONE_EACH)
        for n in range(101):
            await put(managed, n)
        check(cluster, managed, 101)
        assert len(record(cluster).folded) > 5
        assert await numbers(managed) == list(range(101))
        infos = managed.ledgers()
        await managed.close()
        again = await cluster.open(config=ONE_EACH)
        assert again.ledgers()[:100] == infos[:100]
        await put(again, 101)
        assert await numbers(again) == list(range(102))
        found = await read_ledgers(PATH, MemoryMetadataStore(cluster.tree))
        assert found is not None
        assert found[1].entries == 102

    simulate(main)


def test_trimmed_runs_leave_nothing_behind() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=ONE_EACH)
        for n in range(80):
            await put(managed, n)
        for first in (1, 4, 5, 21, 40, 63, 79):
            place = managed.position_at(first - (80 - managed.entries))
            await managed.trim(place)
            check(cluster, managed, 80, first)
            assert await numbers(managed) == list(range(first, 80))
            listed = {info.ledger_id for info in managed.ledgers()}
            assert {int(name) for name in cluster.tree.children("/ledgers")} == listed
            managed = await cluster.open(config=ONE_EACH)
            check(cluster, managed, 80, first)
        await put(managed, 80)
        assert await numbers(managed) == [79, 80]

    simulate(main)


def test_very_many_ledgers_are_trimmed_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsark.storage.managed_ledger.trimming.LEDGERS_A_TRIM", 5)
    monkeypatch.setattr("pulsark.storage.managed_ledger.trimming.REMOVING_MAX", 12)

    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=ONE_EACH)
        for n in range(60):
            await put(managed, n)
        cluster.all[0].down = True
        await managed.trim(managed.last_confirmed)
        assert len(record(cluster).removing) == 12, "a bookie that is away bounds what goes"
        cluster.all[0].down = False
        await managed.trim(managed.last_confirmed)
        assert record(cluster).removing == ()
        assert managed.entries == 1
        check(cluster, managed, 60, 59)

    simulate(main)


def test_a_deleted_topic_leaves_no_runs() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=ONE_EACH)
        for n in range(70):
            await put(managed, n)
        await managed.trim(Position(10, 0))
        await managed.delete()
        assert cluster.tree.children("/") == ["counters"]
        assert cluster.all[0].ledger_ids() == []

    simulate(main)


@pytest.mark.parametrize("done", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("where", [LEDGER_RUNS, PATH])
def test_a_fold_may_stop_at_each_write(where: str, done: bool) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        number, count = 1, 0
        while count < 150:
            managed = await cluster.open(config=ONE_EACH)
            assert await numbers(managed) == list(range(count))
            store = ForgetfulStore(cluster.tree, where)
            store.loses, store.done = number, done
            managed._stored.metadata = store
            for _ in range(11):
                before = managed.last_confirmed
                await put(managed, count)
                if managed.last_confirmed == before:
                    await managed.close()  # in doubt who owns it: the next one reads what is true
                    managed = await cluster.open(config=ONE_EACH)
                count = managed.entries
            assert await numbers(managed) == list(range(count))
            number = number % 12 + 1
            await settle(managed)
            await managed.close()
        managed = await cluster.open(config=ONE_EACH)
        for n in range(count, count + 2 * SMALL):
            await put(managed, n)
        check(cluster, managed, count + 2 * SMALL)

    simulate(main)


def test_a_store_that_is_away_stops_no_appends() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=ONE_EACH)
        put_before = managed._stored.metadata.put

        async def refusing(
            path: str, value: bytes, version: int = ANY_VERSION, *, ephemeral: bool = False
        ) -> int:
            if path.startswith(LEDGER_RUNS):
                raise MetadataError("away")
            return await put_before(path, value, version, ephemeral=ephemeral)

        managed._stored.metadata.put = refusing  # type: ignore[method-assign]
        for n in range(30):
            await put(managed, n)
        assert documents(cluster) == []
        assert managed.entries == 30
        managed._stored.metadata.put = put_before  # type: ignore[method-assign]
        await asyncio.sleep(11)
        await put(managed, 30)
        await turns(300)
        check(cluster, managed, 31)

    simulate(main)


def test_a_long_record_of_before_is_folded_when_it_is_opened() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        infos = tuple(LedgerInfo(n, 2, 10, 1000 + n) for n in range(0, 200, 2))
        long = ManagedLedgerRecord("a" * 32, 5, ledgers=infos)
        cluster.tree.put(PATH, long.encode(), ANY_VERSION, None)
        managed = await cluster.open()
        await turns(300)
        assert managed.ledgers() == list(infos)
        check(cluster, managed, 200)
        lines = record(cluster).folded
        assert [line.ledgers for line in lines[:5]] == [LARGE] * 5

    simulate(main)


def test_a_run_that_is_missing_is_an_error_and_not_an_empty_topic() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=ONE_EACH)
        for n in range(20):
            await put(managed, n)
        now = record(cluster)
        path = now.folded[0].path(now.topic_id)
        kept = cluster.tree.get(path)
        assert kept is not None
        cluster.tree.delete(path, ANY_VERSION)
        with pytest.raises(MetadataError, match="missing"):
            await cluster.open()
        cluster.tree.put(path, kept.value[:-9], ANY_VERSION, None)
        with pytest.raises(MetadataError, match="cannot be read"):
            await cluster.open()
        cluster.tree.put(path, kept.value, ANY_VERSION, None)
        assert (await cluster.open()).entries == 20

    simulate(main)


def test_a_read_of_folded_ledgers_goes_on_behind_what_is_trimmed() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        managed = await cluster.open(config=ONE_EACH)
        for n in range(40):
            await put(managed, n)
        for step in range(0, 30, 3):
            reading = asyncio.ensure_future(managed.read(EARLIEST, 100, 1000))
            await turns(step)
            await managed.trim(managed.position_at(2))
            found = [int(entry) for _, entry in await reading]
            assert found == list(range(found[0], 40))
        with pytest.raises(NoSuchLedgerError):
            await managed._manager.read(0, 0, 0, 1)

    simulate(main)


def test_ledgers_get_larger_where_there_are_very_many() -> None:
    config = ManagedLedgerConfig()
    assert [config.times(n) for n in (0, 49_999, 50_000, 99_999, 100_000)] == [1, 1, 2, 2, 4]
    size, minute = config.max_entries, 60_000
    assert config.is_full(size, 0, 10 * minute)
    assert not config.is_full(size, 0, 20 * minute, 2)
    assert not config.is_full(2 * size, 0, 19 * minute, 2)
    assert config.is_full(2 * size, 0, 20 * minute, 2)


def test_a_run_that_is_damaged_is_refused() -> None:
    run = ledger_runs.LedgerRun.of([LedgerInfo(1, 2, 3, 4), LedgerInfo(5, 6, 7, 8)])
    value = run.encode()
    assert list(decode_run("/r", value).infos()) == list(run.infos())
    for old, new in ((b'"version":1', b'"version":2'), (b"ledgerIds", b"x"), (b"AAA", b"A-A")):
        with pytest.raises(MetadataError, match="/r"):
            decode_run("/r", value.replace(old, new, 1))
