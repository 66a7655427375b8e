"""A bookie that lost its disk gets another name."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from pathlib import Path

import pytest

from pulsark.errors import ConfigError, StorageError
from pulsark.limits import METADATA_MARK_SECONDS
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import LEDGER_ID_COUNTER
from pulsark.metadata.store import ANY_VERSION
from pulsark.runtime import Runtime
from pulsark.storage.bookie.claims import OtherStoreError
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.fleet import (
    BookieHome,
    check_store_is_there,
    leave_when_failed,
    open_fleet,
)
from pulsark.storage.bookie.journal_format import RECORD_OVERHEAD
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.bookie.records import is_lost
from tests.sim.bookies import append, append_later
from tests.sim.disk import SURVIVALS, SimDisk, Survival
from tests.sim.simulation import Simulation


def homes(root: Path, count: int) -> list[BookieHome]:
    return [
        BookieHome(str(root / f"{i}/journal"), str(root / f"{i}/ledgers")) for i in range(count)
    ]


def names(root: Path, metadata: MemoryMetadataStore, count: int = 2) -> list[str]:
    return asyncio.run(used(root, metadata, count))


async def used(
    root: Path,
    metadata: MemoryMetadataStore,
    count: int = 2,
    *,
    ledgers: int = 0,
    adopt: bool = False,
) -> list[str]:
    """Start the fleet, let it keep an entry of so many new ledgers, stop it."""
    runtime = Runtime()
    settings = JournalSettings()
    fleet = await open_fleet(homes(root, count), settings, metadata, runtime, adopt=adopt)
    for _ in range(ledgers):
        ledger_id = await metadata.next_id(LEDGER_ID_COUNTER)
        for bookie in fleet.values():
            await append(bookie, ledger_id, 0, [b"entry"])
    for bookie in fleet.values():
        await bookie.close()
    return sorted(fleet)


@pytest.mark.feature("F71")
def test_names_stay_over_restarts(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    assert names(tmp_path, metadata) == names(tmp_path, metadata) == ["bookie-1", "bookie-2"]


def test_an_empty_disk_never_answers_under_the_old_name(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata)
    shutil.rmtree(tmp_path / "1")
    first, second = names(tmp_path, metadata)
    assert first == "bookie-1"
    assert second not in ("bookie-1", "bookie-2")
    assert names(tmp_path, metadata) == [first, second]
    found = [asyncio.run(is_lost(name, metadata)) for name in ("bookie-1", "bookie-2", second)]
    assert found == [False, True, False]


def test_without_records_no_bookie_is_known_to_be_lost() -> None:
    """A ledger's end is decided by this: what may come back must not count as lost."""
    assert not asyncio.run(is_lost("bookie-1", MemoryMetadataStore()))


@pytest.mark.parametrize("disk_was_lost", [False, True])
@pytest.mark.parametrize("survival", SURVIVALS)
def test_a_crash_in_the_first_start_on_a_disk_is_repaired_by_the_second(
    survival: Survival, disk_was_lost: bool
) -> None:
    home = [BookieHome("/0/journal", "/0/ledgers")]

    async def start(sim: Simulation, disk: SimDisk, metadata: MemoryMetadataStore) -> list[str]:
        fleet = await open_fleet(home, JournalSettings(), metadata, sim.runtime(disk))
        return list(fleet)

    steps = 0
    while True:
        steps += 1
        metadata, disk = MemoryMetadataStore(), SimDisk()
        if disk_was_lost:
            with Simulation() as sim:
                sim.run(start(sim, SimDisk(), metadata))
        disk.crash_at = steps
        with Simulation() as sim:
            if not sim.run_until_crash(start(sim, disk, metadata)):
                break
            after = disk.after_crash(survival, sim.rng)
        with Simulation() as sim:
            (name,) = sim.run(start(sim, after, metadata))
            assert (name == "bookie-1") != disk_was_lost
        with Simulation() as sim:
            assert sim.run(start(sim, after.after_crash("all", sim.rng), metadata)) == [name]
    assert steps > 10


@pytest.mark.parametrize("away", ["a link that leads nowhere", "a file"])
def test_a_disk_that_is_away_is_not_an_empty_one(tmp_path: Path, away: str) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata)
    (tmp_path / "1").rename(tmp_path / "other")
    if away == "a file":
        (tmp_path / "1").write_bytes(b"")
    else:
        (tmp_path / "1").symlink_to(tmp_path / "nowhere")
    assert names(tmp_path, metadata) == ["bookie-1"]
    (tmp_path / "1").unlink()
    (tmp_path / "other").rename(tmp_path / "1")
    assert names(tmp_path, metadata) == ["bookie-1", "bookie-2"]


def test_a_start_with_fewer_bookies_than_before_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata, 2)
    assert not caplog.records
    assert names(tmp_path, metadata, 1) == ["bookie-1"]
    (said,) = caplog.records
    assert said.getMessage().startswith("bookie-2 is known")


def test_a_bookie_that_lost_only_its_journal_is_left_out(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata)
    shutil.rmtree(tmp_path / "1" / "journal")
    assert names(tmp_path, metadata) == ["bookie-1"]


def test_without_any_bookie_the_reason_is_raised(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata, 1)
    shutil.rmtree(tmp_path / "0" / "journal")
    with pytest.raises(ConfigError, match="holds no journal"):
        names(tmp_path, metadata, 1)


def test_anothers_disk_is_refused(tmp_path: Path) -> None:
    names(tmp_path / "a", MemoryMetadataStore(), 1)
    metadata = MemoryMetadataStore()
    names(tmp_path / "b", metadata, 1)
    shutil.rmtree(tmp_path / "b" / "0")
    shutil.move(tmp_path / "a" / "0", tmp_path / "b" / "0")
    with pytest.raises(ConfigError, match="knows instance"):
        names(tmp_path / "b", metadata, 1)


def test_a_lost_metadata_store_is_noticed_and_nothing_is_changed(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path, MemoryMetadataStore(), ledgers=1))
    before = files(tmp_path)
    other = MemoryMetadataStore()
    with pytest.raises(OtherStoreError, match=r"belongs to the metadata store.*--adopt"):
        names(tmp_path, other)
    assert files(tmp_path) == before
    assert other.tree.children("/") == []


def test_without_a_store_bookies_in_service_are_refused_before_one_is_made(tmp_path: Path) -> None:
    disk, store = Runtime().disk, tmp_path / "metadata.db"
    check_store_is_there(str(store), homes(tmp_path, 2), disk)
    names(tmp_path, MemoryMetadataStore())
    with pytest.raises(
        OtherStoreError, match=r"metadata.db is not there, and bookie bookie-1.*--a"
    ):
        check_store_is_there(str(store), homes(tmp_path, 2), disk)
    store.touch()
    check_store_is_there(str(store), homes(tmp_path, 2), disk)


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_one_bookie_that_is_strange_stops_a_start_with_two_empty_places(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path, MemoryMetadataStore(), 3, ledgers=1))
    shutil.rmtree(tmp_path / "0")
    shutil.rmtree(tmp_path / "1")
    with pytest.raises(OtherStoreError):
        names(tmp_path, MemoryMetadataStore(), 3)
    assert not (tmp_path / "0").exists()


def test_bookies_of_a_release_without_store_ids_become_those_of_the_store_that_knows_them(
    tmp_path: Path,
) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata)
    for path in tmp_path.rglob("BOOKIE"):
        document = json.loads(path.read_bytes())
        del document["storeId"]
        path.write_text(json.dumps({**document, "version": 1}))
    with pytest.raises(OtherStoreError, match="no record of it"):
        names(tmp_path, MemoryMetadataStore())
    assert names(tmp_path, metadata) == ["bookie-1", "bookie-2"]
    stores = {json.loads(path.read_bytes())["storeId"] for path in tmp_path.rglob("BOOKIE")}
    assert stores == {metadata.identity}


def test_an_earlier_state_of_the_store_is_noticed_whatever_it_missed(tmp_path: Path) -> None:
    tree = MemoryTree()

    async def scenario() -> None:
        await used(tmp_path, MemoryMetadataStore(tree), ledgers=2)
        earlier = tree.copy()
        metadata = MemoryMetadataStore(tree)
        await metadata.put("/managed-ledgers/x", b"anything")
        await used(tmp_path, metadata)
        with pytest.raises(OtherStoreError, match="went back"):
            await used(tmp_path, MemoryMetadataStore(earlier))
        for _ in range(50):  # however often it is tried, and changes at each start
            earlier.branch()
            earlier.put("/a", b"", ANY_VERSION, None)
            with pytest.raises(OtherStoreError, match="went back"):
                await used(tmp_path, MemoryMetadataStore(earlier))
        assert await used(tmp_path, MemoryMetadataStore(tree)) == ["bookie-1", "bookie-2"]

    asyncio.run(scenario())


def test_a_counter_below_what_the_bookies_have_seen_is_noticed(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    asyncio.run(used(tmp_path, metadata, ledgers=3))
    metadata.tree.put(LEDGER_ID_COUNTER, b"2", ANY_VERSION, None)
    with pytest.raises(OtherStoreError, match="has seen ledger 2, and it would give 2"):
        names(tmp_path, metadata)


def test_a_mark_goes_ahead_of_what_is_written_after_its_change(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()

    async def scenario() -> None:
        fleet = await open_fleet(homes(tmp_path, 1), JournalSettings(), metadata, Runtime())
        (bookie,) = fleet.values()
        for number in range(5):
            await metadata.put("/a", b"%d" % number)
            mark = metadata.mark
            await append(bookie, number, 0, [b"entry"])
            assert bookie.mark == mark
        written = bookie._journal._writer.size  # type: ignore[union-attr]
        await append(bookie, 5, 0, [b"entry"])
        alone = bookie._journal._writer.size - written  # type: ignore[union-attr]
        for number in range(100):  # without appends, changes cost the journal nothing
            await metadata.put("/a", b"%d" % number)
        written = bookie._journal._writer.size  # type: ignore[union-attr]
        await append(bookie, 6, 0, [b"entry"])
        with_mark = bookie._journal._writer.size - written  # type: ignore[union-attr]
        assert with_mark == alone + RECORD_OVERHEAD
        await metadata.put("/a", b"last")
        await bookie.close()

    asyncio.run(scenario())
    mark = metadata.mark

    async def after() -> None:
        runtime = Runtime()
        journal, ledgers = homes(tmp_path, 1)[0].journal_dir, homes(tmp_path, 1)[0].ledger_dir
        bookie = await EmbeddedBookie.open("bookie-1", journal, ledgers, JournalSettings(), runtime)
        assert bookie.mark == mark
        await bookie.close()

    asyncio.run(after())


def test_a_mark_that_finds_no_group_has_one_of_its_own_in_time() -> None:
    disk, store = SimDisk(), MemoryMetadataStore()

    async def main(runtime: Runtime) -> None:
        fleet = await open_fleet([BookieHome("/j", "/l")], JournalSettings(), store, runtime)
        (bookie,) = fleet.values()
        for offset in (0.0, METADATA_MARK_SECONDS - 1e-4):  # the second falls into a sync
            await store.put("/a", b"")
            await asyncio.sleep(offset)
            done = append_later(bookie, 0, 0, [b"entry"]) if offset else None
            await store.put("/a", b"")
            await asyncio.sleep(METADATA_MARK_SECONDS + 0.1)
            assert bookie.mark == store.mark
            if done is not None:
                await done

    with Simulation() as sim:
        sim.run(main(sim.runtime(disk)))


def test_adopted_bookies_are_known_and_no_ledger_id_is_given_again(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path, MemoryMetadataStore(), ledgers=7))
    kept = {path: data for path, data in files(tmp_path).items() if path.suffix == ".journal"}
    tree = MemoryTree()
    asyncio.run(used(tmp_path, MemoryMetadataStore(tree), adopt=True))
    assert {path: files(tmp_path)[path] for path in kept} == kept
    assert int(tree.get(LEDGER_ID_COUNTER).value) > 7 + 1_000_000  # type: ignore[union-attr]
    assert names(tmp_path, MemoryMetadataStore(tree)) == ["bookie-1", "bookie-2"]


def test_a_bookie_that_comes_back_after_an_adoption_is_refused(tmp_path: Path) -> None:
    tree = MemoryTree()

    async def scenario() -> None:
        await used(tmp_path, MemoryMetadataStore(tree), ledgers=1)
        earlier = tree.copy()
        await used(tmp_path, MemoryMetadataStore(tree), ledgers=3)
        (tmp_path / "1").rename(tmp_path / "away")
        (tmp_path / "1").mkdir()
        await used(tmp_path, MemoryMetadataStore(earlier), 1, adopt=True)
        (tmp_path / "1").rmdir()
        (tmp_path / "away").rename(tmp_path / "1")
        with pytest.raises(OtherStoreError, match="bookie-2 has seen its change"):
            await used(tmp_path, MemoryMetadataStore(earlier))

    asyncio.run(scenario())


def test_a_bookie_whose_disk_fails_leaves_and_too_few_are_said() -> None:
    disks, said = {name: SimDisk() for name in "abc"}, []

    async def main() -> None:
        fleet = {
            name: await EmbeddedBookie.open(name, "/j", "/l", JournalSettings(), sim.runtime(disk))
            for name, disk in disks.items()
        }
        leave_when_failed(fleet, 2, said.append)
        for name, left in (("b", ["a", "c"]), ("c", ["a"])):
            assert not said
            disks[name].sync_errno_once = errno.EIO
            with pytest.raises(StorageError):
                await append(fleet[name], 1, 0, [b"x"])
            assert sorted(fleet) == left
            await append(fleet["a"], 1, 0, [b"x"])

    with Simulation() as sim:
        sim.run(main())
    (error,) = said
    assert str(error).startswith("bookie c: the journal has stopped: ")
