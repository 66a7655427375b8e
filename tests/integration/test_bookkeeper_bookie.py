"""The contract of bookies, and what is special of those of Apache BookKeeper, against real ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from pulsark.errors import NoSuchEntryError, StorageError
from pulsark.runtime import Done, new_done
from pulsark.storage.bookie.bookie import Bookie, EntryRun, LedgerTail
from pulsark.storage.bookkeeper.bookie import BookKeeperBookie
from tests.contracts.test_bookie import (  # noqa: F401 - the fixture `run` below is for these
    Scenario,
    append,
    entries,
    test_absence_is_told_apart,
    test_entries_come_back_in_order,
    test_entries_survive_a_restart,
    test_fence_of_an_unknown_ledger_holds,
    test_fence_sees_what_was_appended_before_it,
    test_fence_stops_the_writer_but_not_recovery,
    test_large_and_empty_payloads,
    test_ledgers_do_not_mix,
    test_same_entries_again_do_no_harm,
    test_tail_knows_lac_and_last_entry,
)
from tests.support.bookkeeper import Cluster

_bases = itertools.count(1000, 1000)


class Shifted:
    """A bookie whose ledgers have other ids: all tests use one cluster, and the same ids.

    What nobody said of a ledger's length is not told: these bookies make something of it.
    """

    def __init__(self, bookie: BookKeeperBookie, base: int, measured: set[int]) -> None:
        self._bookie = bookie
        self._base = base
        self._measured = measured
        self.bookie_id = bookie.bookie_id
        self.flush = bookie.flush

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        if run.confirmed_bytes >= 0:
            self._measured.add(run.ledger_id)
        run = run._replace(ledger_id=run.ledger_id + self._base)
        self._bookie.append(run, done, recovery=recovery, reserve=reserve)

    async def read(self, ledger_id: int, *where: int) -> list[tuple[int, bytes]]:
        return await self._bookie.read(ledger_id + self._base, *where)

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        tail = await self._bookie.tail(ledger_id + self._base, fence=fence)
        return tail if ledger_id in self._measured else replace(tail, confirmed_bytes=-1)


@dataclass
class Harness:
    """Opens new connections to the same bookie again and again."""

    cluster: Cluster
    base: int
    measured: set[int] = field(default_factory=set)

    @asynccontextmanager
    async def bookie(self) -> AsyncIterator[Bookie]:
        async with self.cluster.registry() as registry:
            yield Shifted(registry["bookie-1"], self.base, self.measured)  # type: ignore[misc]


@pytest.fixture
def run(bookkeeper: Cluster) -> Callable[[Scenario], None]:
    """Runs a scenario of the contract."""

    def against_bookkeeper(scenario: Scenario) -> None:
        asyncio.run(scenario(Harness(bookkeeper, next(_bases))))  # type: ignore[arg-type]

    return against_bookkeeper


async def appended(bookie: Bookie, ledger_id: int, first: int, payloads: list[bytes]) -> None:
    await append(bookie, ledger_id, first, payloads, lac=first - 1)


def test_striping_leaves_gaps(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            for n in range(0, 12, 3):
                await append(bookie, 1, n, entries(n, 2))
            for first, found in ((0, [0, 1]), (1, [1]), (2, [3]), (5, [6]), (9, [9, 10])):
                assert [n for n, _ in await bookie.read(1, first, 11, 1 << 20)] == found
            for first, last in ((5, 5), (11, 11), (11, 100)):
                with pytest.raises(NoSuchEntryError):
                    await bookie.read(1, first, last, 1 << 20)

    run(scenario)  # type: ignore[arg-type]


def test_the_tail_has_the_length_up_to_the_lac(run: Callable[[Scenario], None]) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            for n in range(3):
                future, done = new_done()
                bookie.append(EntryRun(5, n, n - 1, entries(n, 1), n * 7, n * 7), done)
                await future
            assert await bookie.tail(5, fence=False) == LedgerTail(1, 2, 14)

    run(scenario)  # type: ignore[arg-type]


def test_adds_of_a_ledger_complete_in_the_order_made(run: Callable[[Scenario], None]) -> None:
    """Those of several ledgers need not."""

    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await bookie.tail(9, fence=True)
            order: dict[int, list[tuple[int, str]]] = {ledger: [] for ledger in range(10)}
            finished, left = asyncio.get_running_loop().create_future(), 400

            def done(ledger: int, n: int, error: BaseException | None) -> None:
                nonlocal left
                order[ledger].append((n, type(error).__name__))
                left -= 1
                if not left:
                    finished.set_result(None)

            for n in range(40):
                for ledger in range(10):
                    run = EntryRun(ledger, n * 3, n * 3 - 1, [b"x" * n] * 3)
                    bookie.append(run, partial(done, ledger, n))
                if n % 11 == 0:
                    await asyncio.sleep(0)
            await finished
            for ledger in range(9):
                assert order[ledger] == [(n, "NoneType") for n in range(40)]
            assert order[9] == [(n, "LedgerFencedError") for n in range(40)]

    run(scenario)  # type: ignore[arg-type]


def test_a_read_ends_after_some_bytes_but_not_before_an_entry(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            await appended(bookie, 1, 0, [bytes([n]) * 1000 for n in range(20)])
            for size in (0, 1, 2, 999):
                assert await bookie.read(1, 7, 19, size) == [(7, b"\x07" * 1000)]
            some = [n for n, _ in await bookie.read(1, 4, 19, 5000)]
            assert some == [4, 5, 6, 7]
            assert len(await bookie.read(1, 4, 1 << 40, 1 << 40)) == 16

    run(scenario)  # type: ignore[arg-type]


def test_more_than_a_bookie_takes_at_once_is_sent_piece_by_piece(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            large, many = [b"x" * (1 << 20)] * 40, [b"y"] * 15_000
            await asyncio.gather(
                appended(bookie, 1, 0, large), appended(bookie, 2, 0, many),
                *(appended(bookie, 3, n * 100, [b"z" * 1000] * 100) for n in range(80)),
            )  # fmt: skip
            for ledger, count in ((1, 40), (2, 15_000), (3, 8000)):
                assert (await bookie.tail(ledger, fence=False)).last_entry_id == count - 1

    run(scenario)  # type: ignore[arg-type]


def test_an_entry_that_no_bookie_takes_is_refused_and_the_connection_lives(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(harness: Harness) -> None:
        async with harness.bookie() as bookie:
            with pytest.raises(StorageError, match="are allowed"):
                await append(bookie, 1, 0, [b"small", b"x" * (6 << 20)])
            await append(bookie, 1, 0, [b"small"])
            assert await bookie.read(1, 0, 9, 100) == [(0, b"small")]

    run(scenario)  # type: ignore[arg-type]
