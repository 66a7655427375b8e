"""Storage roots that are full, read-only, away or wiped while messages are sealed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging.handlers import BufferingHandler
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.errors import StorageError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import STORAGE_ROOTS
from pulsark.storage.roots.root_files import ROOT_MARKER
from pulsark.storage.roots.store_pause import DeniedStoreError, PausedStoreError
from pulsark.storage.table.files.record import SealedLedger, table_directory
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.log.delta_log import DeltaLog, commit_name
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.repair import placed
from pulsark.storage.table.root_identity import (
    RefusedRootError,
    StorageRoots,
    commission,
)
from pulsark.storage.table.table_repair import Repair
from pulsark.storage.table.tables import Tables
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk, SimReadFile
from tests.sim.simulation import Simulation
from tests.support.client_view import client_view
from tests.support.inline_table import inline_tables
from tests.support.tables import attached_files, check_files, entry

NAME = TopicName.parse("persistent://public/default/t")
TABLE_ID = "0" * 31 + "1"
ROOTS = ["/root-1", "/root-2", "/root-3"]
DIRECTORIES = [table_directory(root, NAME, TABLE_ID) for root in ROOTS]
ENTRIES = [entry(i, i % 3) for i in range(40)]


@dataclass
class World:
    """Three roots, of which two are needed, and a ledger that is sealed ten entries at a time."""

    disk: SimDisk
    tables: Tables
    sealed: int = 0
    seals: list[int] = field(default_factory=list)

    async def seal(self, count: int = 10) -> None:
        async def entries(wanted: SealRange) -> AsyncIterator[Entries]:
            yield [(i, ENTRIES[i]) for i in range(wanted.first, wanted.last + 1)]

        wanted = SealRange(-1, 5, self.sealed, self.sealed + count - 1, 1000)
        await (await self.tables.open(NAME, TABLE_ID)).seal([wanted], entries, 1 << 20)
        self.sealed += count

    async def is_whole(self, roots: list[str] = DIRECTORIES) -> None:
        """These roots are equal and have everything, and a reader gets it."""
        found = [attached_files(self.disk, directory) for directory in roots]
        assert all(one == found[0] for one in found)
        for directory in roots:
            check_files(self.disk, directory, found[0][1])
        assert [f.last_entry_id for f in found[0][1]][-1] == self.sealed - 1
        place, read = 0, []
        while place < self.sealed:
            read += await self.tables.read(NAME, 5, place, self.sealed - 1, 1 << 20)
            place = read[-1][0] + 1
        assert [client_view(e) for _, e in read] == [client_view(e) for e in ENTRIES[:place]]

    def files(self, root: str) -> list[str]:
        return [path for path in self.disk.files() if path.startswith(f"{root}/")]


Test = Callable[[World], Coroutine[Any, Any, None]]


def world(test: Test) -> Callable[[], None]:
    def run() -> None:
        with Simulation() as sim:

            async def main() -> None:
                disk, metadata = SimDisk(), MemoryMetadataStore()
                runtime = sim.runtime(disk)
                roots = await commission(ROOTS, metadata, runtime)
                tables = inline_tables(roots, metadata, runtime, copies=3, copies_needed=2)
                await test(World(disk, tables))
                await tables.close()

            sim.run(main())

    run.__name__ = test.__name__
    return run


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("write_errno", errno.ENOSPC),
        ("write_errno", errno.EROFS),
        ("name_errno", errno.EROFS),
        ("sync_errno", errno.EIO),
    ],
)
@pytest.mark.parametrize("root", ROOTS)
def test_a_root_that_fails_stays_behind_and_catches_up(fault: str, code: int, root: str) -> None:
    @world
    async def scenario(world: World) -> None:
        await world.seal()
        world.disk.faulty = f"{root}/"
        setattr(world.disk, fault, code)
        await world.seal()
        others = [directory for directory in DIRECTORIES if not directory.startswith(root)]
        await world.is_whole(others)
        setattr(world.disk, fault, 0)
        await world.seal()
        await world.is_whole()

    scenario()


@world
async def test_a_commit_that_could_not_be_read_once_is_read_at_the_next_attach(
    world: World,
) -> None:
    await world.seal(5)
    world.disk.faulty, world.disk.name_errno = "/root-3/", errno.EROFS
    await world.seal(5)
    world.disk.name_errno = 0
    opened, open_ = list[str](), world.disk.open

    def fails_once(path: str) -> SimReadFile:
        opened.append(path)
        # The log is checked, it is looked what is missing, and then each commit is copied.
        if path == f"{DIRECTORIES[0]}/_delta_log/{commit_name(2)}" and opened.count(path) == 3:
            raise OSError(errno.EIO, "once")
        return open_(path)

    world.disk.open = fails_once  # type: ignore[method-assign]
    await world.seal(5)
    assert DeltaLog(world.disk, DIRECTORIES[2]).versions() == [0, 1]
    await world.seal(5)
    await world.is_whole()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_with_too_few_roots_nothing_is_attached_and_later_everything_is(code: int) -> None:
    @world
    async def scenario(world: World) -> None:
        await world.seal()
        world.disk.faulty, world.disk.write_errno = "/root-", code
        for _ in range(3):
            with pytest.raises((StorageError, OSError)):
                await world.seal()
        world.disk.write_errno = 0
        await world.is_whole()
        await world.seal()
        await world.is_whole()
        named = [f.path for f in attached_files(world.disk, DIRECTORIES[0])[1]]
        data = [path for path in world.files(DIRECTORIES[0]) if path.endswith(".parquet")]
        assert [path.removeprefix(f"{DIRECTORIES[0]}/") for path in data] == named

    scenario()


@world
async def test_an_attach_that_has_reached_too_few_roots_is_not_done(world: World) -> None:
    """The files are everywhere, and no log can be written."""
    await world.seal()
    world.disk.faulty, world.disk.name_errno = "/_delta_log", errno.EROFS
    for _ in range(2):
        with pytest.raises(StorageError, match="has reached 0 roots of 2"):
            await world.seal()
        found = await world.tables.sealed(NAME, 5)
        assert found is not None
        assert found.through == 9, "the journal keeps what comes behind it"
    world.disk.name_errno = 0
    await world.tables.open(NAME, TABLE_ID)
    world.sealed = 20
    await world.is_whole()


@world
async def test_a_root_that_was_wiped_while_it_was_in_use_gets_nothing(world: World) -> None:
    await world.seal()
    for path in world.files("/root-2"):
        world.disk.remove(path)
    await world.seal()
    assert world.files("/root-2") == []
    await world.is_whole([DIRECTORIES[0], DIRECTORIES[2]])
    assert "is refused" in await world.tables.roots.problem("/root-2")
    # The directory was only unmounted: everything is as it was.
    world.disk.write_new(f"/root-2/{ROOT_MARKER}", b'{"version": 1, "rootId": "another"}')
    assert "it is another" in await world.tables.roots.problem("/root-2")
    with pytest.raises(StorageError, match="is missing"):
        await world.tables.catch_up(NAME, DIRECTORIES[1])
    assert len(world.files("/root-2")) == 1


@world
async def test_a_root_catches_up_although_the_owner_of_its_table_goes_on(world: World) -> None:
    """Any broker completes the logs on a root, also of tables that others attach to meanwhile."""
    await world.seal()
    ledgers = world.tables.ledgers

    async def overtaken(name: TopicName) -> list[SealedLedger]:
        found = await ledgers(name)
        world.tables.ledgers = ledgers  # type: ignore[method-assign]
        await world.seal()
        return found

    world.tables.ledgers = overtaken  # type: ignore[method-assign]
    await world.tables.catch_up(NAME, DIRECTORIES[1])
    await world.is_whole()


@world
async def test_a_root_that_fails_does_not_catch_up_and_says_why(world: World) -> None:
    await world.seal()
    world.disk.remove(f"{DIRECTORIES[1]}/_delta_log/{commit_name(1)}")
    world.disk.faulty, world.disk.name_errno = "/root-2/", errno.EIO
    with pytest.raises(StorageError, match="root-2"):
        await world.tables.catch_up(NAME, DIRECTORIES[1])


@world
async def test_a_store_that_is_left_alone_ends_a_repair_with_the_reason(world: World) -> None:
    await world.seal()

    def paused(directory: str) -> None:
        raise PausedStoreError(errno.EAGAIN, "it is asked again soon", directory)

    def also_paused(disk: SimDisk, root: str) -> None:
        paused(root)

    roots: Any = world.tables.roots
    roots.check = paused
    roots._roots = SimpleNamespace(check=also_paused)

    async def nothing(wanted: SealRange) -> AsyncIterator[Entries]:
        yield []

    with pytest.raises(StorageError, match="asked again soon"):
        await world.tables.repair(NAME, TABLE_ID, nothing, 1 << 20, Repair(), give_up=False)


@world
async def test_where_there_is_little_room_small_batches_are_sealed_and_the_log_says_so(
    world: World,
) -> None:
    roots: Any = world.tables.roots
    roots._room = lambda directory: 500
    with logged("pulsark.storage.table.roots") as said:
        for _ in range(2):
            await world.seal()
            world.sealed -= 5  # half of it
    assert sum("in small batches" in record.getMessage() for record in said) == 1
    await world.is_whole()


@contextmanager
def logged(name: str) -> Iterator[list[logging.LogRecord]]:
    """What a logger is told."""
    handler = BufferingHandler(1000)
    logging.getLogger(name).addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.parametrize(
    ("directories", "roots", "in_service", "copies", "found"),
    [
        ("/a /b", "/a /b /c", "/a /b /c", 2, "/a /b"),
        ("/a /b", "/a /c", "/a /c", 2, "/a /c"),
        ("/a /b", "/b /c", "/b /c", 2, "/b /c"),
        ("/a /b", "/a /c", "/a", 2, "/a"),  # the new one is refused
        ("/a", "/a /b /c", "/a /b /c", 3, "/a /b /c"),
        ("/a /b /c", "/a /b", "/a /b", 2, "/a /b"),
        ("/a /b", "/a /b", "/b", 2, "/a /b"),  # a root that is refused is filled, not replaced
        ("/a", "/b", "/b", 1, "/b"),
    ],
)
def test_where_a_table_should_be(
    directories: str, roots: str, in_service: str, copies: int, found: str
) -> None:
    def below(names: str) -> list[str]:
        return [table_directory(root, NAME, TABLE_ID) for root in names.split()]

    wanted = placed(below(directories), roots.split(), in_service.split(), copies)
    assert wanted == below(found)


def test_ids_of_roots_survive_a_restart_and_a_crash_at_each_step() -> None:
    with Simulation() as sim:

        async def main() -> None:
            metadata = MemoryMetadataStore()
            disk = SimDisk()
            first = await commission(ROOTS, metadata, sim.runtime(disk))
            assert len(set(first.ids.values())) == 3
            assert await commission(ROOTS, metadata, sim.runtime(disk)) == first
            # A root is wiped: it keeps its id, and gets no file by itself.
            disk.remove(f"/root-1/{ROOT_MARKER}")
            assert await commission(ROOTS, metadata, sim.runtime(disk)) == first
            assert disk.list("/root-1") == []
            # A new root cannot be written to: it is refused, and taken in when it can.
            disk.faulty, disk.name_errno = "/root-4", errno.EROFS
            more = await commission([*ROOTS, "/root-4"], metadata, sim.runtime(disk))
            assert disk.list("/root-4") == []
            disk.name_errno = 0
            assert await commission([*ROOTS, "/root-4"], metadata, sim.runtime(disk)) == more
            assert disk.list("/root-4") == [ROOT_MARKER]

        sim.run(main())


def test_a_root_whose_first_start_was_broken_off_is_in_service_after_the_next() -> None:
    with Simulation() as sim:

        async def main() -> None:
            metadata, disk = MemoryMetadataStore(), SimDisk()
            first = await commission(["/a"], metadata, sim.runtime(disk))
            (path,) = [f"{STORAGE_ROOTS}/{name}" for name in await metadata.children(STORAGE_ROOTS)]
            found = await metadata.get(path)
            assert found is not None
            # As it is between the root's file and the record of it.
            await metadata.put(path, found.value.replace(b"true", b"false"), found.version)
            assert await commission(["/a"], metadata, sim.runtime(disk)) == first
            disk.remove(f"/a/{ROOT_MARKER}")
            await commission(["/a"], metadata, sim.runtime(disk))
            assert disk.list("/a") == []

        sim.run(main())


def test_brokers_that_begin_with_one_root_at_the_same_time_agree() -> None:
    with Simulation() as sim:

        async def main() -> None:
            metadata, disk = MemoryMetadataStore(), SimDisk()
            found = await asyncio.gather(
                *[commission(["/a"], metadata, sim.runtime(disk)) for _ in range(4)]
            )
            assert len({roots.ids["/a"] for roots in found}) == 1
            found[0].check(disk, "/a")
            assert await commission(["/a"], metadata, sim.runtime(disk)) == found[0]

        sim.run(main())


class Overwriting(SimDisk):
    """As an object store that does not know what ``If-None-Match`` means."""

    def write_new(self, path: str, data: bytes) -> None:
        self.make_dirs(path.rpartition("/")[0])
        self.write_atomic(path, data)


def test_a_store_that_overwrites_is_refused_before_anything_is_in_it() -> None:
    root = "s3://bucket/tables"
    with Simulation() as sim:

        async def main() -> None:
            metadata, files = MemoryMetadataStore(), Overwriting()
            for _ in range(2):
                roots = await commission([root], metadata, sim.runtime(SimDisk()), files=files)
                with pytest.raises(RefusedRootError):
                    roots.check(files, root)
                assert files.list(root) == []

        sim.run(main())


class OverwritingOnce(Overwriting):
    """Its broker ends before it has taken the mark away again."""

    ended = False

    def remove(self, path: str) -> None:
        if not self.ended:
            self.ended = True
            raise OSError(errno.EIO, "it has ended", path)
        super().remove(path)


def test_a_store_that_overwrites_is_refused_after_a_start_that_was_broken_off() -> None:
    root = "s3://bucket/tables"
    with Simulation() as sim:

        async def main() -> None:
            metadata, files = MemoryMetadataStore(), OverwritingOnce()
            for _ in range(2):
                roots = await commission([root], metadata, sim.runtime(SimDisk()), files=files)
            with pytest.raises(RefusedRootError):
                roots.check(files, root)
            assert files.list(root) == []

        sim.run(main())


class Paused(SimDisk):
    """As an object store that failed a moment ago, and is not asked now."""

    def open(self, path: str) -> SimReadFile:
        raise PausedStoreError(errno.EAGAIN, "it is asked again soon", path)


def test_a_store_that_is_left_alone_is_a_root_with_a_problem() -> None:
    with Simulation() as sim:

        async def main() -> None:
            roots = StorageRoots(("/a",), {"/a": "an-id"})
            tables = inline_tables(roots, MemoryMetadataStore(), sim.runtime(Paused()))
            assert "asked again soon" in await tables.roots.problem("/a")
            await tables.close()

        sim.run(main())


class Locked(SimDisk):
    """As an object store that lets nobody in with the keys of now."""

    locked = True
    asked = 0

    def open(self, path: str) -> SimReadFile:
        self._ask(path)
        return super().open(path)

    def write_new(self, path: str, data: bytes) -> None:
        self._ask(path)
        super().write_new(path, data)

    def _ask(self, path: str) -> None:
        self.asked += 1
        if self.locked:
            raise DeniedStoreError(errno.EACCES, "403 Forbidden", path)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_store_that_lets_nobody_in_is_refused_with_what_to_do(
    caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    root = "s3://bucket/tables"
    with Simulation() as sim:

        async def main() -> None:
            metadata, files = MemoryMetadataStore(), Locked()
            files.make_dirs(root)
            before = None
            if is_known:
                files.locked = False
                before = await commission([root], metadata, sim.runtime(SimDisk()), files=files)
                files.locked = True
            files.asked = 0
            roots = await commission([root], metadata, sim.runtime(SimDisk()), files=files)
            assert files.asked == 1, "the store is left alone after that, and said nothing new"
            for said in (caplog.text, await refusal(roots, files)):
                for part in (root, "tableRoots", "objectStoreCredentialsFile", "403 Forbidden"):
                    assert part in said
            files.locked = False
            after = await commission([root], metadata, sim.runtime(SimDisk()), files=files)
            after.check(files, root)
            assert before in (None, after)

        async def refusal(roots: StorageRoots, files: Locked) -> str:
            with pytest.raises(RefusedRootError) as error:
                roots.check(files, root)
            return str(error.value)

        sim.run(main())


class Unheard(SimDisk):
    """An object store of which no answer to a put arrives: what stands there afterwards tells what
    became of it."""

    def write_new(self, path: str, data: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            super().write_new(path, data)
        file = self.open(path)
        if file.read(0, 4096) != data:
            raise FileExistsError(path)


def test_a_store_whose_answers_are_lost_is_not_taken_for_one_that_overwrites() -> None:
    root = "s3://bucket/tables"
    with Simulation() as sim:

        async def main() -> None:
            files = Unheard()
            files.make_dirs(root)
            metadata = MemoryMetadataStore()
            roots = await commission([root], metadata, sim.runtime(SimDisk()), files=files)
            roots.check(files, root)

        sim.run(main())


def test_a_root_that_cannot_be_made_is_named_with_what_becomes_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NotMade(SimDisk):
        def make_dirs(self, path: str) -> None:
            raise OSError(errno.EROFS, "Read-only file system", path)

    with Simulation() as sim:
        disk = NotMade()
        sim.run(commission(["/a"], MemoryMetadataStore(), sim.runtime(disk)))
    (line,) = caplog.messages
    for part in ("storage root /a", "Read-only file system", "Nothing is sealed", "started again"):
        assert part in line


def test_another_store_s_root_is_refused_at_each_start_until_it_is_adopted() -> None:
    with Simulation() as sim:

        async def main() -> None:
            metadata, disk = MemoryMetadataStore(), SimDisk()
            strange = await commission(["/a"], MemoryMetadataStore(), sim.runtime(disk))
            for _ in range(3):
                roots = await commission(["/a"], metadata, sim.runtime(disk))
                assert roots.ids != strange.ids
                with pytest.raises(RefusedRootError, match="is refused"):
                    roots.check(disk, "/a")
            for adopt in (True, False):
                roots = await commission(["/a"], metadata, sim.runtime(disk), adopt=adopt)
                assert roots.ids == strange.ids
                roots.check(disk, "/a")

        sim.run(main())


def test_a_root_that_moves_to_a_path_that_was_refused_before_is_the_one_it_was() -> None:
    with Simulation() as sim:

        async def main() -> None:
            metadata, disk = MemoryMetadataStore(), SimDisk()
            before = await commission(["/a"], metadata, sim.runtime(disk))
            disk.faulty, disk.name_errno = "/b", errno.EROFS
            await commission(["/b"], metadata, sim.runtime(disk))
            disk.name_errno = 0
            rename(disk, "/a", "/b")
            after = await commission(["/b"], metadata, sim.runtime(disk))
            assert (after.ids["/b"], after.moved) == (before.ids["/a"], {"/a": "/b"})

        sim.run(main())


def test_a_root_under_another_path_is_the_one_it_was() -> None:
    with Simulation() as sim:

        async def main() -> None:
            metadata, disk = MemoryMetadataStore(), SimDisk()
            runtime = sim.runtime(disk)
            before = await commission(["/a", "/b"], metadata, runtime)
            one = World(disk, inline_tables(before, metadata, runtime, copies=2))
            await one.seal()
            rename(disk, "/a", "/c")
            after = await commission(["/c", "/b"], metadata, runtime)
            assert (after.ids["/c"], after.moved) == (before.ids["/a"], {"/a": "/c"})
            two = World(disk, inline_tables(after, metadata, runtime, copies=2), sealed=10)
            await two.seal()
            await two.is_whole([table_directory(root, NAME, TABLE_ID) for root in ("/b", "/c")])
            assert not one.files("/a")
            rename(disk, "/c", "/a")
            again = await commission(["/a", "/b"], metadata, runtime)
            assert (again.ids, again.moved) == (before.ids, {"/c": "/a"})
            # A copy of a root that is there is none of them.
            disk.make_dirs("/d")
            disk.write_new(f"/d/{ROOT_MARKER}", disk.content(f"/a/{ROOT_MARKER}"))
            copied = await commission(["/a", "/b", "/d"], metadata, runtime)
            with pytest.raises(StorageError, match="is refused"):
                copied.check(disk, "/d")

        sim.run(main())


def rename(disk: SimDisk, old: str, new: str) -> None:
    for path in disk.files():
        if path.startswith(f"{old}/"):
            to = new + path.removeprefix(old)
            disk.make_dirs(to.rpartition("/")[0])
            disk.write_new(to, disk.content(path))
            disk.remove(path)


def test_two_attachers_of_one_table_and_only_the_newer_one_goes_on() -> None:
    with Simulation() as sim:

        async def main() -> None:
            disk, metadata = SimDisk(), MemoryMetadataStore()
            runtime = sim.runtime(disk)
            one = World(disk, inline_tables(ROOTS, metadata, runtime, copies=3, copies_needed=2))
            two = World(disk, inline_tables(ROOTS, metadata, runtime, copies=3, copies_needed=2))
            await one.seal()
            two.sealed = 10
            await two.seal()
            with pytest.raises(StorageError, match="would not follow"):
                await one.seal()  # the same entries
            one.sealed = 20
            await one.seal()  # it has opened the table anew, and is the newer owner now
            await one.is_whole()
            two.sealed = 30
            with pytest.raises(StorageError, match="another owner"):
                await two.seal()
            await one.is_whole()
            results = await asyncio.gather(one.seal(), one.seal(), return_exceptions=True)
            assert sum(isinstance(result, StorageError) for result in results) == 1
            one.sealed = 40
            await one.is_whole()

        sim.run(main())
