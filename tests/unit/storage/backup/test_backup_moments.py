"""A backup during which things happen, at any moment, restores to one state, and a whole one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pulsark.config.sources import load_settings
from pulsark.errors import PulsarkError
from pulsark.metadata.paths import LEDGER_ID_COUNTER
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.runtime import OsDisk, ReadFile, Runtime, SystemClock
from pulsark.storage.backup.data_dir import DataDir
from pulsark.storage.backup.make import Backup
from pulsark.storage.backup.manifest import Manifest, read_manifest
from pulsark.storage.backup.restore import check_empty, restore
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.fleet import open_fleet
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import append

SETTINGS = JournalSettings(journal_max_size=8 << 10)
MOMENTS = 30


def data_dir(path: Path) -> DataDir:
    return DataDir.of(load_settings(flags={"dataDir": str(path)}).settings)


class Life:
    """A bookie and a store with documents ``/topics/<ledger>``: how many entries, from which on.

    A document is written when its entries are there; what leaves the bookie has left it before.
    """

    def __init__(self, store: SqliteMetadataStore, bookie: EmbeddedBookie) -> None:
        self.store = store
        self.bookie = bookie
        self.confirmed: dict[int, int] = {}
        self.ledgers: dict[int, list[int]] = {}

    async def round(self, *, removes: bool = True) -> None:
        """A new ledger, entries, a release, a deletion, and segments removed if ``removes``."""
        ledger_id = await self.store.next_id(LEDGER_ID_COUNTER)
        self.ledgers[ledger_id] = [0, 0]
        for number in range(3):
            await append(self.bookie, ledger_id, number, [bytes([ledger_id % 256]) * 700])
            await self._note(ledger_id, number + 1, 0)
        older = sorted(self.ledgers)
        if len(older) > 2:
            await self._note(older[-2], 3, 2)
            await self.bookie.release(older[-2], 1)
        if len(older) > 4:
            del self.ledgers[older[0]]
            await self.store.delete(f"/topics/{older[0]}")
            await self.bookie.delete(older[0])
            if removes:
                await self.bookie.recycle()

    async def _note(self, ledger_id: int, entries: int, first: int) -> None:
        self.ledgers[ledger_id] = [entries, first]
        await self.store.put(f"/topics/{ledger_id}", json.dumps([entries, first]).encode())


class InterruptedDisk(OsDisk):
    """Something happens before the call number ``at``, and is done when the call is made."""

    def __init__(self, at: int, happens: Callable[[], None]) -> None:
        self.calls = 0
        self._at = at
        self._happens = happens

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self._at:
            self._happens()

    def open(self, path: str) -> ReadFile:
        self._call()
        return super().open(path)

    def list(self, path: str) -> list[str]:
        self._call()
        return super().list(path)

    def remove(self, path: str) -> None:
        self._call()
        super().remove(path)


async def living(data: DataDir, use: Callable[[Life], Awaitable[None]]) -> None:
    runtime = Runtime()
    runtime.disk.make_dirs(data.path)
    store = await SqliteMetadataStore.open(data.metadata_path, runtime)
    fleet = await open_fleet(data.homes, SETTINGS, store, runtime)
    (bookie,) = fleet.values()
    try:
        await use(Life(store, bookie))
    finally:
        await bookie.close()
        await store.close()


def backup_with_something_at(
    path: Path, moment: int, *, removes: bool
) -> tuple[Manifest, dict[int, list[int]], int]:
    """Its manifest, what was confirmed before it began, and how often it asked the disk."""
    before: dict[int, list[int]] = {}
    made: list[Manifest] = []
    calls = 0

    async def use(life: Life) -> None:
        nonlocal calls
        loop = asyncio.get_running_loop()
        for _ in range(6):
            await life.round()
        before.update({ledger_id: list(known) for ledger_id, known in life.ledgers.items()})

        def happens() -> None:
            for _ in range(3):
                asyncio.run_coroutine_threadsafe(life.round(removes=removes), loop).result(60)

        disk = InterruptedDisk(moment, happens)

        def make() -> Manifest:
            data, target = data_dir(path / "data"), str(path / "backup")
            return Backup(data, target, disk, SystemClock()).make()

        made.append(await loop.run_in_executor(None, make))
        calls = disk.calls

    asyncio.run(living(data_dir(path / "data"), use))
    return made[0], before, calls


@pytest.mark.parametrize("removes", [False, True])
@pytest.mark.parametrize("moment", range(1, MOMENTS + 1))
def test_a_backup_is_of_one_moment(tmp_path: Path, moment: int, removes: bool) -> None:
    manifest, before, calls = backup_with_something_at(tmp_path, moment, removes=removes)
    assert manifest.missing == ()
    assert calls <= MOMENTS
    restored, disk = data_dir(tmp_path / "restored"), OsDisk()
    backup = str(tmp_path / "backup")
    check_empty(restored, disk)
    restore(read_manifest(disk, backup), backup, restored, disk)

    async def compare(life: Life) -> None:
        assert not life.bookie.recovery.damaged
        found = {}
        for name in await life.store.children("/topics"):
            value = await life.store.get(f"/topics/{name}")
            assert value is not None
            entries, first = found[int(name)] = json.loads(value.value)
            read = await life.bookie.read(int(name), first, entries - 1, 1 << 20)
            assert [number for number, _ in read] == list(range(first, entries))
            assert {payload[0] for _, payload in read} == {int(name) % 256}
        # What was there before is there, or was deleted by what happened meanwhile.
        assert max(found) >= max(before)
        assert all(ledger_id in found or ledger_id < max(found) - 3 for ledger_id in before)
        await life.round()

    asyncio.run(living(restored, compare))


def test_a_store_that_went_back_is_not_backed_up(tmp_path: Path) -> None:
    data = data_dir(tmp_path / "data")
    earlier = tmp_path / "earlier.db"

    async def use(life: Life) -> None:
        await life.round()

    asyncio.run(living(data, use))
    earlier.write_bytes(Path(data.metadata_path).read_bytes())
    asyncio.run(living(data, use))
    Path(data.metadata_path).write_bytes(earlier.read_bytes())
    backup = Backup(data, str(tmp_path / "backup"), OsDisk(), SystemClock())
    with pytest.raises(PulsarkError, match="older than bookie-1"):
        backup.make()


def test_a_target_that_is_no_new_directory_is_refused(tmp_path: Path) -> None:
    data = data_dir(tmp_path / "data")

    async def use(life: Life) -> None:
        await life.round()

    asyncio.run(living(data, use))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for target, why in (("used", "not empty"), ("data/backup", "within the data directory")):
        with pytest.raises(PulsarkError, match=why):
            Backup(data, str(tmp_path / target), OsDisk(), SystemClock()).make()
    with pytest.raises(PulsarkError, match=r"no metadata\.db"):
        Backup(data_dir(tmp_path / "no"), str(tmp_path / "b"), OsDisk(), SystemClock()).make()
