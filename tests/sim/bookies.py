"""Bookies on simulated disks, and the calls that tests make on any bookie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pulsark.storage.bookie.bookie import Bookie, EntryRun
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_format import segment_name
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

JOURNAL_DIR = "/b/journal"
LEDGER_DIR = "/b/ledgers"


async def open_bookie(
    sim: Simulation, disk: SimDisk, settings: JournalSettings | None = None, name: str = "b"
) -> EmbeddedBookie:
    """Start the bookie that lives on this disk."""
    return await EmbeddedBookie.open(
        name, JOURNAL_DIR, LEDGER_DIR, settings or JournalSettings(), sim.runtime(disk)
    )


@asynccontextmanager
async def bookie_on(
    sim: Simulation, disk: SimDisk, settings: JournalSettings | None = None
) -> AsyncIterator[EmbeddedBookie]:
    """A bookie from start to orderly stop."""
    bookie = await open_bookie(sim, disk, settings)
    try:
        yield bookie
    finally:
        await bookie.close()


async def append(
    bookie: Bookie,
    ledger_id: int,
    first: int,
    payloads: Sequence[bytes],
    *,
    lac: int = -1,
    recovery: bool = False,
    reserve: bool = False,
) -> None:
    """Append and wait; raises what the bookie answers."""
    error = await append_later(
        bookie, ledger_id, first, payloads, lac=lac, recovery=recovery, reserve=reserve
    )
    if error is not None:
        raise error


def append_later(
    bookie: Bookie,
    ledger_id: int,
    first: int,
    payloads: Sequence[bytes],
    *,
    lac: int = -1,
    recovery: bool = False,
    reserve: bool = False,
) -> asyncio.Future[BaseException | None]:
    """Append now; the future gets the bookie's answer as its result."""
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    run = EntryRun(ledger_id, first, lac, payloads)
    bookie.append(run, future.set_result, recovery=recovery, reserve=reserve)
    assert not future.done(), "done was called from inside append"
    return future


def entries(first: int, count: int) -> list[bytes]:
    """Payloads that can be told apart."""
    return [b"entry-%d" % n for n in range(first, first + count)]


def segment_path(segment_id: int) -> str:
    """The file of a segment."""
    return f"{JOURNAL_DIR}/{segment_name(segment_id)}"
