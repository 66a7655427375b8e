"""What every ``Bookie`` promises: run over each implementation and each kind of disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from pulsark.errors import (
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from pulsark.runtime import Runtime
from pulsark.storage.bookie.bookie import Bookie, EntryRun, LedgerTail
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.remote_bookie.link import unix_socket
from pulsark.storage.remote_bookie.messages import Hello
from pulsark.storage.remote_bookie.remote import RemoteBookie
from pulsark.storage.remote_bookie.server import BookieServer
from tests.sim.disk import SimDisk
from tests.sim.pipe import Pipes
from tests.sim.simulation import Simulation

T = TypeVar("T")
Scenario = Callable[["Harness"], Awaitable[None]]


@dataclass
class Harness:
    """Opens the same bookie again and again, as its process is restarted."""

    directory: str
    runtime: Runtime
    way: str = "embedded"
    """Or by "pipe" (in virtual time), or by "socket"."""

    @asynccontextmanager
    async def bookie(self) -> AsyncIterator[Bookie]:
        bookie = await EmbeddedBookie.open(
            "bookie-1",
            f"{self.directory}/journal",
            f"{self.directory}/ledgers",
            JournalSettings(),
            self.runtime,
        )
        server = BookieServer(bookie, "", entry_bytes_max=64 << 20)
        try:
            if self.way == "embedded":
                yield bookie
                return
            connect = Pipes(server.connection, piece_bytes=7000).connect
            if self.way == "socket":
                await server.listen(f"{self.directory}/socket")
                connect = unix_socket(f"{self.directory}/socket")
            remote = await RemoteBookie.connect(connect, Hello("bookie-1"))
            try:
                yield remote
            finally:
                await remote.close()
        finally:
            await server.close()
            await bookie.close()


@pytest.fixture(params=["os", "sim", "socket", "pipe"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Scenario], None]]:
    """Runs a scenario on the operating system's disk or on a simulated one, in one process or by
    way of a connection."""
    if request.param in ("os", "socket"):
        way = "embedded" if request.param == "os" else "socket"

        def on_disk(scenario: Scenario) -> None:
            async def main() -> None:
                await scenario(Harness(str(tmp_path), Runtime(), way))

            asyncio.run(main())

        yield on_disk
        return
    with Simulation(seed=1) as simulation:
        runtime = simulation.runtime(SimDisk())

        async def main(scenario: Scenario) -> None:
            way = "pipe" if request.param == "pipe" else "embedded"
            await scenario(Harness("/bookie", runtime, way))

        yield lambda scenario: simulation.run(main(scenario))


async def append(
    bookie: Bookie,
    ledger_id: int,
    first: int,
    payloads: list[bytes],
    *,
    lac: int = -1,
    recovery: bool = False,
) -> None:
    """Append and wait; raises what the bookie answers."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    bookie.append(EntryRun(ledger_id, first, lac, payloads), done, recovery=recovery)
    assert not future.done(), "done was called from inside append"
    await future


def entries(first: int, count: int) -> list[bytes]:
    return [b"entry-%d" % n for n in range(first, first + count)]


def test_entries_come_back_in_order(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            assert bookie.bookie_id == "bookie-1"
            await append(bookie, 7, 0, entries(0, 3))
            await append(bookie, 7, 3, entries(3, 2))
            expected = list(enumerate(entries(0, 5)))
            assert await bookie.read(7, 0, 100, 1 << 20) == expected
            assert await bookie.read(7, 2, 3, 1 << 20) == expected[2:4]

    run(scenario)


def test_entries_survive_a_restart(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        for life in range(4):
            async with harness.bookie() as bookie:
                await append(bookie, 7, life * 2, entries(life * 2, 2))
                read = await bookie.read(7, 0, 100, 1 << 20)
                assert read == list(enumerate(entries(0, life * 2 + 2)))

    run(scenario)


def test_a_read_is_bounded_but_never_empty(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await append(bookie, 1, 0, [bytes([n]) * 1000 for n in range(20)])
            for first in range(15):
                assert [n for n, _ in await bookie.read(1, first, 19, 1)] == [first]
                assert [n for n, _ in await bookie.read(1, first, 19, 0)] == [first]
            some = [n for n, _ in await bookie.read(1, 4, 19, 5000)]
            assert some == [4, 5, 6, 7, 8]

    run(scenario)


@pytest.mark.feature("F71")
def test_ledgers_do_not_mix(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await asyncio.gather(
                *(append(bookie, ledger, 0, [b"%d" % ledger] * 3) for ledger in range(30))
            )
            for ledger in range(30):
                read = await bookie.read(ledger, 0, 9, 1 << 20)
                assert read == [(n, b"%d" % ledger) for n in range(3)]

    run(scenario)


def test_striping_leaves_gaps(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            for n in range(0, 12, 3):
                await append(bookie, 1, n, entries(n, 2))
            held = [n for n in range(12) if n % 3 != 2]
            assert [n for n, _ in await bookie.read(1, 0, 11, 1 << 20)] == held
            assert [n for n, _ in await bookie.read(1, 2, 4, 1 << 20)] == [3, 4]
            with pytest.raises(NoSuchEntryError):
                await bookie.read(1, 5, 5, 1 << 20)

    run(scenario)


def test_appends_complete_in_the_order_made(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await bookie.tail(99, fence=True)
            order: list[tuple[int, bool]] = []
            finished = asyncio.get_running_loop().create_future()

            def done(n: int, error: BaseException | None) -> None:
                order.append((n, error is None))
                if n == 59:
                    finished.set_result(None)

            for n in range(60):
                ledger = 99 if n % 7 == 3 else n % 5
                bookie.append(
                    EntryRun(ledger, n, -1, [b"x" * n]),
                    lambda e, n=n: done(n, e),  # type: ignore[misc]
                )
                if n % 11 == 0:
                    await asyncio.sleep(0)
            await finished
            assert order == [(n, n % 7 != 3) for n in range(60)]

    run(scenario)


def test_same_entries_again_do_no_harm(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await append(bookie, 1, 0, entries(0, 10))
            await append(bookie, 1, 4, entries(4, 3), recovery=True)
            await append(bookie, 1, 8, entries(8, 6), recovery=True)
            assert await bookie.read(1, 0, 99, 1 << 20) == list(enumerate(entries(0, 14)))
        async with harness.bookie() as bookie:
            assert await bookie.read(1, 0, 99, 1 << 20) == list(enumerate(entries(0, 14)))
            assert await bookie.tail(1, fence=False) == LedgerTail(-1, 13)

    run(scenario)


def test_tail_knows_lac_and_last_entry(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            assert await bookie.tail(5, fence=False) == LedgerTail(-1, -1)
            await append(bookie, 5, 0, entries(0, 4), lac=-1)
            await append(bookie, 5, 4, entries(4, 2), lac=3)
            await append(bookie, 5, 0, entries(0, 1), lac=-1, recovery=True)
            assert await bookie.tail(5, fence=False) == LedgerTail(3, 5)
        async with harness.bookie() as bookie:
            assert await bookie.tail(5, fence=False) == LedgerTail(3, 5)

    run(scenario)


def test_tail_knows_the_length_with_the_lac(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            for first, size in ((0, -1), (1, 7), (2, 14)):
                future = asyncio.get_running_loop().create_future()
                bookie.append(
                    EntryRun(5, first, first - 1, entries(first, 1), size), future.set_result
                )
                assert await future is None
            await append(bookie, 5, 1, entries(1, 1), lac=0, recovery=True)
            await append(bookie, 5, 2, entries(2, 1), lac=1, recovery=True)
            assert await bookie.tail(5, fence=False) == LedgerTail(1, 2, 14)
        async with harness.bookie() as bookie:
            assert await bookie.tail(5, fence=False) == LedgerTail(1, 2, 14)

    run(scenario)


@pytest.mark.feature("F73")
def test_fence_stops_the_writer_but_not_recovery(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await append(bookie, 5, 0, entries(0, 2), lac=0)
            assert await bookie.tail(5, fence=True) == LedgerTail(0, 1)
            with pytest.raises(LedgerFencedError):
                await append(bookie, 5, 2, entries(2, 1))
            await append(bookie, 5, 2, entries(2, 1), lac=0, recovery=True)
        async with harness.bookie() as bookie:
            with pytest.raises(LedgerFencedError):
                await append(bookie, 5, 3, entries(3, 1))
            assert await bookie.tail(5, fence=True) == LedgerTail(0, 2)

    run(scenario)


def test_fence_of_an_unknown_ledger_holds(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            assert await bookie.tail(8, fence=True) == LedgerTail(-1, -1)
        async with harness.bookie() as bookie:
            with pytest.raises(LedgerFencedError):
                await append(bookie, 8, 0, entries(0, 1))
            with pytest.raises(NoSuchEntryError):
                await bookie.read(8, 0, 0, 1)

    run(scenario)


def test_fence_sees_what_was_appended_before_it(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            earlier = [asyncio.ensure_future(append(bookie, 3, n, entries(n, 1))) for n in range(5)]
            await asyncio.sleep(0)
            tail = await bookie.tail(3, fence=True)
            assert tail.last_entry_id == 4
            await asyncio.gather(*earlier)

    run(scenario)


def test_released_entries_are_sealed_not_absent(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await append(bookie, 4, 0, entries(0, 10), lac=8)
            await bookie.release(4, 6)
            await bookie.release(4, 2)
        async with harness.bookie() as bookie:
            for n in (0, 6):
                with pytest.raises(EntrySealedError):
                    await bookie.read(4, n, 9, 1 << 20)
            assert [n for n, _ in await bookie.read(4, 7, 9, 1 << 20)] == [7, 8, 9]
            await bookie.release(4, 20)
            assert await bookie.tail(4, fence=False) == LedgerTail(8, 20)
            with pytest.raises(EntrySealedError):
                await bookie.read(4, 9, 9, 1)
            with pytest.raises(NoSuchEntryError):
                await bookie.read(4, 21, 21, 1)

    run(scenario)


@pytest.mark.feature("F73")
def test_deleted_ledger_is_gone(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await append(bookie, 1, 0, entries(0, 2))
            await append(bookie, 2, 0, entries(0, 2))
            await bookie.delete(1)
            await bookie.delete(1)
            await bookie.delete(77)
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(1, 0, 0, 1)
        async with harness.bookie() as bookie:
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(1, 0, 0, 1)
            assert len(await bookie.read(2, 0, 9, 1 << 20)) == 2

    run(scenario)


def test_absence_is_told_apart(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            with pytest.raises(NoSuchLedgerError):
                await bookie.read(1, 0, 0, 1)
            await append(bookie, 1, 5, entries(5, 1))
            for n in (4, 6):
                with pytest.raises(NoSuchEntryError):
                    await bookie.read(1, n, n, 1)

    run(scenario)


def test_large_and_empty_payloads(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        payloads = [b"", b"x" * (5 << 20), b"", b"y" * 70_000]
        async with harness.bookie() as bookie:
            await append(bookie, 1, 0, payloads)
            read: list[bytes] = []
            while len(read) < len(payloads):
                read += [p for _, p in await bookie.read(1, len(read), 9, 64 << 20)]
            assert read == payloads
            assert await bookie.read(1, 3, 3, 1) == [(3, payloads[3])]
            assert await bookie.read(1, 1, 3, 1) == [(1, payloads[1])]

    run(scenario)
