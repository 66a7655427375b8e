"""One connection to a bookie: which answers belong to which requests, and when it is given up."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from pulsark.errors import (
    BookieAwayError,
    LedgerFencedError,
    StorageError,
    StorageFullError,
)
from pulsark.storage.bookkeeper.channel import Channel
from pulsark.storage.bookkeeper.limits import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_ENTRIES_MAX,
    ClientSettings,
)
from pulsark.wire.bookkeeper.answers import ReadAnswer
from pulsark.wire.bookkeeper.digests import PLAIN
from pulsark.wire.bookkeeper.requests import encode_adds, encode_batch_read, encode_read
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate, turns

SETTINGS = ClientSettings(add_seconds=5, read_seconds=3)
OK, NO_ENTRY, FENCED, READ_ONLY = 0, 2, 104, 105


class Peer(asyncio.Transport):
    """The bookie's side, as the channel's transport."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.aborted = False
        self.told: list[str] = []
        self.channel = Channel("bookie-1", SETTINGS, lambda _, e: self.told.append(f"ended: {e}"))
        self.channel.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            asyncio.get_running_loop().call_soon(self.channel.connection_lost, None)

    def add(self, ledger_id: int, first: int, count: int, size: int = 1) -> None:
        """What becomes of it is told as ``ledger:first`` and the error's name."""
        frames = encode_adds(ledger_id, first, first - 1, 0, [b"x" * size] * count, PLAIN)
        name = f"{ledger_id}:{first}"

        def done(error: BaseException | None) -> None:
            self.told.append(name if error is None else f"{name} {type(error).__name__}")

        self.channel.add(ledger_id, first, count, frames, done)

    def answer(self, ledger_id: int, *entry_ids: int, code: int = OK) -> None:
        self.channel.data_received(
            b"".join(struct.pack(">IIiqq", 24, 0x02010000, code, ledger_id, e) for e in entry_ids)
        )

    def answer_read(self, ledger_id: int, entry_id: int, stored: bytes) -> None:
        head = struct.pack(">IIiqq", 24 + len(stored), 0x02020000, OK, ledger_id, entry_id)
        self.channel.data_received(head + stored)

    def read(self, entry_id: int) -> asyncio.Task[ReadAnswer]:
        return asyncio.create_task(self.channel.read(7, entry_id, encode_read(7, entry_id)))


def run(scenario: Callable[[Peer], Awaitable[None]]) -> None:
    async def main(_: Simulation) -> None:
        await scenario(Peer())

    simulate(main)


def test_runs_are_complete_when_their_last_entry_is() -> None:
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 3)
        peer.add(7, 3, 2)
        peer.add(8, 0, 1)
        assert peer.sent == b"", "the frames of a turn are sent together"
        await turns()
        assert len(peer.sent) == 6 * 65
        peer.answer(7, 0, 1)
        assert peer.told == []
        peer.answer(7, 2)
        peer.answer(8, 0)
        assert peer.told == ["7:0", "8:0"]
        peer.add(7, 5, 1)
        peer.answer(7, 3, 4, 5)
        assert peer.told == ["7:0", "8:0", "7:3", "7:5"]
        assert peer.channel.pending_bytes == 0

    run(scenario)


def test_a_refusal_that_comes_early_completes_in_its_place() -> None:
    async def scenario(peer: Peer) -> None:
        for n in range(5):
            peer.add(7, n * 2, 2)
        peer.answer(7, 3, code=READ_ONLY)
        peer.answer(7, 8, 9, code=FENCED)
        assert peer.told == []
        peer.answer(7, 0, 1, 2, 4, 5)
        assert peer.told == ["7:0", "7:2 StorageFullError", "7:4"]
        peer.answer(7, 6, 7)
        assert peer.told[3:] == ["7:6", "7:8 LedgerFencedError"]
        peer.add(7, 10, 1)
        peer.answer(7, 10)
        assert peer.told[5:] == ["7:10"]
        assert not peer.aborted

    run(scenario)


def test_an_add_that_was_refused_early_is_told_so_when_the_connection_ends_before_its_turn() -> (
    None
):
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 1)
        peer.add(7, 1, 2)
        drained = asyncio.create_task(peer.channel.drained(7))
        await turns()
        peer.answer(7, 1, 2, code=READ_ONLY)
        assert peer.told == []
        peer.channel.connection_lost(None)
        await turns()
        assert peer.told[1:] == ["7:0 BookieAwayError", "7:1 StorageFullError"]
        assert drained.done()
        assert peer.channel.pending_bytes == 0

    run(scenario)


def test_an_entry_that_is_larger_than_messages_may_be_by_now_is_read() -> None:
    async def scenario(peer: Peer) -> None:
        reading = peer.read(0)
        await turns()
        peer.answer_read(7, 0, bytes(2 * SETTINGS.frame_bytes_max))
        assert len((await reading).stored) == 2 * SETTINGS.frame_bytes_max
        assert not peer.aborted

    run(scenario)


def test_the_same_entry_may_be_added_again_before_the_first_is_answered() -> None:
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 3)
        peer.add(7, 1, 1)
        peer.answer(7, 0, 1, 2)
        assert peer.told == ["7:0"]
        peer.answer(7, 1)
        assert peer.told == ["7:0", "7:1"]

    run(scenario)


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "code"),
    [(7, 1, OK), (7, 3, OK), (8, 0, OK), (7, 3, FENCED), (8, 0, FENCED)],
)
def test_an_answer_that_nothing_waits_for_ends_the_connection(
    ledger_id: int, entry_id: int, code: int
) -> None:
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 3)
        peer.answer(ledger_id, entry_id, code=code)
        await turns()
        assert peer.aborted
        assert peer.told[0].startswith("ended: bookie bookie-1: entry ")
        assert peer.told[1:] == ["7:0 StorageError"]

    run(scenario)


def test_garbage_ends_the_connection_and_fails_all_that_waits() -> None:
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 1)
        reading = peer.read(0)
        batch = asyncio.create_task(
            peer.channel.read_batch(lambda number: encode_batch_read(7, 0, number, 9, 999))
        )
        await turns()
        peer.channel.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(20))
        await turns()
        assert peer.aborted
        assert peer.told[0] == "ended: bookie bookie-1: 0x2f312e31 is no answer of a bookie"
        assert peer.told[1:] == ["7:0 StorageError"]
        for task in (reading, batch):
            with pytest.raises(StorageError, match="no answer of a bookie"):
                await task
        with pytest.raises(StorageError, match="no answer of a bookie"):
            await peer.channel.read(7, 0, encode_read(7, 0))

    run(scenario)


def test_a_lost_connection_fails_adds_in_the_order_made_after_its_owner_knows() -> None:
    async def scenario(peer: Peer) -> None:
        for n in range(3):
            peer.add(7, n, 1)
            peer.add(8, n, 1)
        peer.answer(8, 0)
        peer.channel.connection_lost(ConnectionResetError("reset"))
        assert isinstance(peer.channel.error, BookieAwayError)
        assert peer.told == [
            "8:0",
            "ended: the connection to bookie bookie-1 ended: reset",
            *(f"{ledger}:{n} BookieAwayError" for n in range(3) for ledger in (7, 8)
              if (ledger, n) != (8, 0)),
        ]  # fmt: skip

    run(scenario)


def test_a_bookie_that_does_not_answer_an_add_is_given_up() -> None:
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 1)
        await asyncio.sleep(4)
        peer.add(8, 0, 1)
        peer.answer(7, 0)
        await asyncio.sleep(4.5)
        assert not peer.aborted
        await asyncio.sleep(1)
        assert peer.told == [
            "7:0",
            "ended: bookie bookie-1 did not answer for 5 s",
            "8:0 StorageError",
        ]

    run(scenario)


def test_what_is_not_sent_yet_is_not_waited_for() -> None:
    """A bookie with much to do may take long for all of it."""

    async def scenario(peer: Peer) -> None:
        firsts = range(0, 10 * IN_FLIGHT_ENTRIES_MAX, IN_FLIGHT_ENTRIES_MAX)
        for first in firsts:
            peer.add(7, first, IN_FLIGHT_ENTRIES_MAX)
        for first in firsts[:-1]:
            await asyncio.sleep(4)
            peer.answer(7, *range(first, first + IN_FLIGHT_ENTRIES_MAX))
        assert peer.told == [f"7:{first}" for first in firsts[:-1]]
        await asyncio.sleep(4.5)
        assert not peer.aborted
        await asyncio.sleep(1)
        assert peer.told[-2] == "ended: bookie bookie-1 did not answer for 5 s"

    run(scenario)


def stand_still(seconds: float) -> None:
    """As a process that is stopped: then timers are called before what has arrived is read."""
    asyncio.get_running_loop().advance(seconds)  # type: ignore[attr-defined]


def test_a_process_that_stood_still_reads_before_it_gives_a_bookie_up() -> None:
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 1)
        peer.add(8, 0, 1)
        reading = peer.read(0)
        await turns()
        stand_still(40)
        await turns()
        peer.answer(7, 0)
        peer.answer_read(7, 0, b"stored")
        assert (await reading).stored == b"stored"
        assert not peer.aborted
        await asyncio.sleep(1)
        assert peer.told == [
            "7:0",
            "ended: bookie bookie-1 did not answer for 5 s",
            "8:0 StorageError",
        ]

    run(scenario)


@pytest.mark.parametrize(
    ("entries", "size"), [(IN_FLIGHT_ENTRIES_MAX // 2, 1), (1, IN_FLIGHT_BYTES_MAX // 2 - 64)]
)
def test_what_a_bookie_has_not_answered_is_bounded(entries: int, size: int) -> None:
    async def scenario(peer: Peer) -> None:
        for n in range(4):
            peer.add(7, n * entries, entries, size)
        await turns()
        frame = entries * (64 + size)
        assert len(peer.sent) == 2 * frame
        peer.answer(7, *range(entries))
        await turns()
        assert len(peer.sent) == 3 * frame
        peer.answer(7, *range(entries, 3 * entries))
        await turns()
        assert len(peer.sent) == 4 * frame
        peer.answer(7, *range(3 * entries, 4 * entries))
        assert peer.told == [f"7:{n * entries}" for n in range(4)]

    run(scenario)


def test_one_add_goes_out_however_large_it_is() -> None:
    async def scenario(peer: Peer) -> None:
        peer.add(7, 0, 2 * IN_FLIGHT_ENTRIES_MAX)
        await turns()
        assert len(peer.sent) == 2 * IN_FLIGHT_ENTRIES_MAX * 65

    run(scenario)


def test_equal_reads_are_answered_one_by_one_also_if_a_caller_went() -> None:
    async def scenario(peer: Peer) -> None:
        first, second, other = peer.read(0), peer.read(0), peer.read(1)
        await turns()
        first.cancel()
        await turns()
        peer.answer_read(7, 1, b"other")
        peer.answer_read(7, 0, b"first")
        await turns()
        assert other.done()
        assert not second.done()
        peer.answer_read(7, 0, b"second")
        assert (await second).stored == b"second"
        assert (await other).stored == b"other"

    run(scenario)


def test_a_read_without_an_answer_ends_the_connection() -> None:
    """Else its answer could be taken for that of a later one."""

    async def scenario(peer: Peer) -> None:
        with pytest.raises(StorageError, match="did not answer for 3 s"):
            await peer.read(0)
        assert peer.aborted

    run(scenario)


@pytest.mark.parametrize("answered", [False, True])
def test_a_read_that_nobody_waits_for_any_more_still_has_to_be_answered(answered: bool) -> None:
    """Callers leave a silent bookie for another one, and would never find out else."""

    async def scenario(peer: Peer) -> None:
        read = peer.read(0)
        await asyncio.sleep(1)
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read
        await asyncio.sleep(1)
        if answered:
            peer.answer_read(7, 0, b"late")
        await asyncio.sleep(0.9)
        assert not peer.aborted
        await asyncio.sleep(0.2)
        assert peer.aborted is not answered

    run(scenario)


def test_draining_waits_for_earlier_adds_of_the_ledger_only() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.channel.drained(7)
        peer.add(7, 0, 1)
        peer.add(8, 0, 1)
        waiting = asyncio.create_task(peer.channel.drained(7))
        await turns()
        peer.add(7, 1, 1)
        assert not waiting.done()
        peer.answer(7, 0)
        await waiting
        assert peer.told == ["7:0"]

    run(scenario)


def test_errors_have_their_kinds() -> None:
    async def scenario(peer: Peer) -> None:
        errors: list[BaseException | None] = []
        frames = encode_adds(7, 0, -1, 0, [b"x"], PLAIN)
        for code in (FENCED, READ_ONLY, 101, 106, 102, 999):
            peer.channel.add(7, 0, 1, frames, errors.append)
            peer.answer(7, 0, code=code)
        assert [type(e) for e in errors[:2]] == [LedgerFencedError, StorageFullError]
        assert [str(e) for e in errors[2:]] == [
            "bookie bookie-1 refused an entry of ledger 7: its disk failed",
            "bookie bookie-1 refused an entry of ledger 7: it has too much to do",
            "bookie bookie-1 refused an entry of ledger 7: the ledger has another password,"
            " or a login is needed",
            "bookie bookie-1 refused an entry of ledger 7: code 999",
        ]

    run(scenario)
