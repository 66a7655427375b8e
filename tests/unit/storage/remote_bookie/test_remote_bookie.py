"""A broker's side and a bookie's side, over connections that break."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvloop

from pulsark.errors import BookieAwayError, LedgerFencedError, StorageError, StorageFullError
from pulsark.runtime import Done
from pulsark.storage.bookie.bookie import EntryRun, LedgerTail
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal import JournalRecord
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.remote_bookie.limits import BOOKIE_RUN_BYTES_MAX, BOOKIE_UNANSWERED_BYTES_MAX
from pulsark.storage.remote_bookie.link import unix_socket
from pulsark.storage.remote_bookie.messages import Hello
from pulsark.storage.remote_bookie.protocol import FrameType
from pulsark.storage.remote_bookie.remote import RemoteBookie
from pulsark.storage.remote_bookie.server import BookieServer
from tests.sim.disk import SimDisk
from tests.sim.pipe import PipeEnd, Pipes
from tests.sim.simulation import Simulation

STORE = "store-1"
SECONDS = 5.0


class Wire:
    """A bookie's process that can be restarted, and the way to it."""

    def __init__(self, sim: Simulation) -> None:
        self.runtime = sim.runtime(SimDisk())
        self.directory = "/bookie"
        self.pipes = Pipes(self._accept)
        self.bookie: EmbeddedBookie
        self.server: BookieServer

    def _accept(self) -> asyncio.Protocol:
        return self.server.connection()

    async def start(self) -> None:
        self.bookie = await EmbeddedBookie.open(
            "bookie-1",
            f"{self.directory}/journal",
            f"{self.directory}/ledgers",
            JournalSettings(),
            self.runtime,
            STORE,
        )
        self.server = BookieServer(self.bookie, STORE, entry_bytes_max=1 << 20)
        self.pipes.accept = self._accept

    async def stop(self) -> None:
        self.pipes.accept = None
        self.pipes.cut()
        await self.server.close()
        await self.bookie.close()

    def frames_to_brokers(self) -> list[int]:
        """The types of all frames that the bookie writes from now on, in order."""
        kinds: list[int] = []
        for end in self.pipes.ends:
            write = end.write

            def watched(data: bytes, write: Any = write) -> None:
                kinds.append(data[4])
                write(data)

            end.write = watched  # type: ignore[method-assign]
        return kinds


@asynccontextmanager
async def wired(sim: Simulation) -> AsyncIterator[tuple[Wire, RemoteBookie]]:
    wire = Wire(sim)
    await wire.start()
    expected = Hello("bookie-1", storeId=STORE)
    remote = await RemoteBookie.connect(wire.pipes.connect, expected, seconds=SECONDS)
    try:
        yield wire, remote
    finally:
        await remote.close()
        await wire.stop()


class Answers:
    """What became of appends, in the order of the answers."""

    def __init__(self) -> None:
        self.got: list[tuple[int, BaseException | None]] = []
        self._changed = asyncio.Event()

    def of(self, n: int) -> Done:
        def done(error: BaseException | None) -> None:
            self.got.append((n, error))
            self._changed.set()

        return done

    async def count(self, wanted: int) -> None:
        while len(self.got) < wanted:
            self._changed.clear()
            await self._changed.wait()

    @property
    def kinds(self) -> list[tuple[int, type[BaseException] | None]]:
        return [(n, None if error is None else type(error)) for n, error in self.got]


def run(n: int, size: int = 10, ledger_id: int = 7) -> EntryRun:
    return EntryRun(ledger_id, n, n - 1, [b"x" * size])


def test_adds_of_one_turn_are_answered_with_one_frame() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            kinds, answers = wire.frames_to_brokers(), Answers()
            for n in range(100):
                remote.append(run(n), answers.of(n))
            await answers.count(100)
            assert answers.kinds == [(n, None) for n in range(100)]
            assert kinds == [FrameType.ADDED]

    with Simulation() as sim:
        sim.run(main())


def test_an_error_is_that_of_its_own_add() -> None:
    async def main() -> None:
        async with wired(sim) as (_, remote):
            assert await remote.tail(9, fence=True) == LedgerTail(-1, -1)
            answers = Answers()
            for n in range(6):
                remote.append(run(n, ledger_id=9 if n in (2, 3) else 7), answers.of(n))
            await answers.count(6)
            fenced = dict.fromkeys((2, 3), LedgerFencedError)
            assert answers.kinds == [(n, fenced.get(n)) for n in range(6)]
            await answers.count(6)
            remote.append(run(0, ledger_id=9), answers.of(6), recovery=True)
            await answers.count(7)
            assert answers.kinds[-1] == (6, None)

    with Simulation() as sim:
        sim.run(main())


def test_a_connection_that_ends_fails_what_was_not_answered_in_order() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            answers = Answers()
            for n in range(5):
                remote.append(run(n), answers.of(n))
            remote.flush()
            wire.pipes.cut()
            await answers.count(5)
            assert answers.kinds == [(n, BookieAwayError) for n in range(5)]
            remote.append(run(5), answers.of(5))
            assert len(answers.got) == 5, "done was called from inside append"
            await answers.count(6)
            assert answers.kinds[5] == (5, BookieAwayError), "it went ahead, and left a hole"
            assert remote.pending_bytes == 0
            # What can be asked again waits until the connection is back.
            assert (await remote.tail(7, fence=True)).last_entry_id in (-1, 4)
            with pytest.raises(LedgerFencedError):
                await appended(remote, run(0))
            await appended(remote, run(0, ledger_id=8))

    with Simulation() as sim:
        sim.run(main())


async def appended(remote: RemoteBookie, entries: EntryRun, *, reserve: bool = False) -> None:
    answers = Answers()
    remote.append(entries, answers.of(0), reserve=reserve)
    await answers.count(1)
    error = answers.got[0][1]
    if error is not None:
        raise error


@pytest.mark.parametrize("then", [b"", random.Random(1).randbytes(200)], ids=["cut", "garbage"])
@pytest.mark.parametrize("to", ["bookie", "broker"])
def test_a_frame_that_breaks_off_anywhere_confirms_nothing_that_is_not_stored(
    to: str, then: bytes
) -> None:
    """After each number of bytes the connection ends, or others come than those of the frame."""
    outcomes = set()

    async def main(after: int) -> bool:
        async with wired(sim) as (wire, remote):
            await appended(remote, run(0))
            left, answers = after, Answers()

            def break_off(end: PipeEnd) -> None:
                arrives = end.arrives

                def some_of(piece: bytes) -> None:
                    nonlocal left
                    arrives(piece[:left])
                    if len(piece) > left:
                        arrives(then)
                        end.arrives = lambda piece: None  # type: ignore[method-assign, assignment]
                        if not then:
                            sim.loop.call_later(1, wire.pipes.cut)
                    left = max(left - len(piece), 0)

                end.arrives = some_of  # type: ignore[method-assign]

            for end in wire.pipes.ends:
                break_off(end if to == "bookie" else end.other)
            remote.append(run(1), answers.of(1))
            await answers.count(1)
            outcomes.add(answers.kinds[0][1])
            wire.pipes.cut()
            last = (await remote.tail(7, fence=True)).last_entry_id
            assert last in ((1,) if answers.kinds[0][1] is None else (0, 1))
            await appended(remote, run(0, ledger_id=8))
            return left > 0

    for after in range(200):
        with Simulation(after) as sim:
            if sim.run(main(after)):
                break
    else:
        pytest.fail("the frame has no end")
    assert outcomes == {None, BookieAwayError}


def test_a_bookie_that_was_restarted_has_what_it_confirmed() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            await appended(remote, run(0))
            await wire.stop()
            asked = asyncio.create_task(remote.read(7, 0, 0, 100))
            await asyncio.sleep(1)
            await wire.start()
            assert await asked == [(0, b"x" * 10)]
            await appended(remote, run(1))
            assert (await remote.tail(7, fence=False)).last_entry_id == 1

    with Simulation() as sim:
        sim.run(main())


def test_a_bookie_that_stays_away_is_an_error_after_a_while() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            await wire.stop()
            before = asyncio.get_running_loop().time()
            with pytest.raises(StorageError, match=r"bookie-1 (is not there|did not answer)"):
                await remote.tail(7, fence=True)
            assert asyncio.get_running_loop().time() - before == pytest.approx(SECONDS, abs=0.1)
            assert await remote.excerpt(7, 0, 0) is None
            await wire.start()

    with Simulation() as sim:
        sim.run(main())


def test_it_is_ready_again_when_it_is_back() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            await remote.ready()
            await wire.stop()
            with pytest.raises(BookieAwayError):
                await appended(remote, run(0))
            waiting = asyncio.create_task(remote.ready())
            await asyncio.sleep(1)
            assert not waiting.done()
            await wire.start()
            await waiting
            await appended(remote, run(0))

    with Simulation() as sim:
        sim.run(main())


@pytest.mark.parametrize("state", ["ending", "away"])
def test_a_caller_that_waits_hears_at_once_that_it_is_closed(state: str) -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            if state == "away":
                await wire.stop()
            else:
                channel = remote._reads.channel
                assert channel is not None
                channel.error = StorageError("it is ending")
            waiting = asyncio.create_task(remote.read(7, 0, 0, 1))
            await asyncio.sleep(0)
            before = asyncio.get_running_loop().time()
            await remote.close()
            with pytest.raises(StorageError, match="closed"):
                await waiting
            assert asyncio.get_running_loop().time() - before < 1

    with Simulation() as sim:
        sim.run(main())


def test_another_instance_is_another_bookie() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            await appended(remote, run(0))
            await wire.stop()
            wire.directory = "/empty-disk"
            await wire.start()
            with pytest.raises(StorageError):
                await remote.tail(7, fence=True)
            with pytest.raises(StorageError):
                await appended(remote, run(1))
            assert wire.bookie.max_ledger_id == -1, "it was spoken to"

    with Simulation() as sim:
        sim.run(main())


@pytest.mark.parametrize(
    "expected",
    [Hello("bookie-2"), Hello(storeId="store-2"), Hello(instanceId="00"), Hello("", version=9)],
)
def test_who_expects_another_bookie_is_told_so(expected: Hello) -> None:
    async def main() -> None:
        wire = Wire(sim)
        await wire.start()
        with pytest.raises(StorageError):
            await RemoteBookie.connect(wire.pipes.connect, expected, seconds=1)
        await wire.stop()

    with Simulation() as sim:
        sim.run(main())


def test_a_bookie_that_does_not_answer_adds_is_given_up() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            stuck: list[Any] = []
            wire.bookie.add = lambda record, **_: stuck.append(record)  # type: ignore[method-assign]
            before = asyncio.get_running_loop().time()
            with pytest.raises(StorageError, match="did not answer for 5 s"):
                await appended(remote, run(0))
            assert asyncio.get_running_loop().time() - before == pytest.approx(SECONDS, abs=0.1)
            # The late answer goes nowhere.
            stuck[0].done(None)

    with Simulation() as sim:
        sim.run(main())


def test_a_long_run_goes_in_parts_and_is_answered_once() -> None:
    async def main() -> None:
        async with wired(sim) as (_, remote):
            count = BOOKIE_RUN_BYTES_MAX // (1 << 19) * 3
            payloads = [bytes((n,)) * (1 << 19) for n in range(count)]
            await appended(remote, EntryRun(7, 0, -1, payloads))
            assert (await remote.tail(7, fence=False)).last_entry_id == count - 1
            read: list[tuple[int, bytes]] = []
            while len(read) < count:
                read += await remote.read(7, len(read), count, 1 << 30)
            assert [payload for _, payload in read] == payloads
            with pytest.raises(StorageError, match="too large"):
                await appended(remote, run(count, size=20 << 20))

    with Simulation() as sim:
        sim.run(main())


def test_a_part_that_fails_fails_the_run() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            add = wire.bookie.add
            seen = 0

            def full_at_first(record: JournalRecord, **flags: Any) -> None:
                nonlocal seen
                seen += 1
                if seen == 1:
                    asyncio.get_running_loop().call_soon(record.done, StorageFullError("full"))
                else:
                    add(record, **flags)

            wire.bookie.add = full_at_first  # type: ignore[method-assign]
            payloads = [b"x" * (1 << 20)] * 40
            with pytest.raises(StorageFullError, match="full"):
                await appended(remote, EntryRun(7, 0, -1, payloads))
            assert seen == 3

    with Simulation() as sim:
        sim.run(main())


def test_a_defect_of_the_bookie_is_an_answer_and_the_next_request_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            await appended(remote, run(0))
            tail = wire.bookie.tail

            async def broken(ledger_id: int, *, fence: bool) -> object:
                raise KeyError("a defect")

            wire.bookie.tail = broken  # type: ignore[assignment,method-assign]
            before = asyncio.get_running_loop().time()
            with pytest.raises(StorageError, match="KeyError: 'a defect'"):
                await remote.tail(7, fence=False)
            assert asyncio.get_running_loop().time() - before < 1
            wire.bookie.tail = tail  # type: ignore[method-assign]
            await remote.tail(7, fence=False)

    with Simulation() as sim:
        sim.run(main())
    assert "Traceback" in caplog.text


def test_a_bookie_reads_no_more_than_it_can_write() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            taken = 0
            add = wire.bookie.add
            held: list[JournalRecord] = []

            def hold(record: JournalRecord, *, recovery: bool) -> None:
                nonlocal taken
                taken += record.size
                held.append(record)

            wire.bookie.add = hold  # type: ignore[method-assign]
            answers = Answers()
            for n in range(60):
                remote.append(run(n, size=1 << 20), answers.of(n))
            await asyncio.sleep(1)
            assert BOOKIE_UNANSWERED_BYTES_MAX <= taken < BOOKIE_UNANSWERED_BYTES_MAX + (3 << 20)
            wire.bookie.add = add  # type: ignore[method-assign]
            for record in held:
                add(record, recovery=False)
            await answers.count(60)
            assert answers.kinds == [(n, None) for n in range(60)]

    with Simulation() as sim:
        sim.run(main())


def test_a_caller_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with wired(sim) as (_, remote):
            asked = [asyncio.create_task(remote.tail(n, fence=True)) for n in range(50)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            channel = remote._writes.channel
            assert channel is not None
            assert not channel._calls
            await asyncio.sleep(1)
            with pytest.raises(LedgerFencedError):
                await appended(remote, run(0, ledger_id=49))

    with Simulation() as sim:
        sim.run(main())


def test_a_release_comes_behind_the_mark_of_what_another_process_changed() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            store = Mock(mark=1)
            remote.follow(store)
            store.on_commit.assert_called_once_with(remote.note_mark)
            await appended(remote, run(0))
            store.mark = 2  # and nobody has told it yet
            await remote.release(7, 0)
            assert wire.bookie.mark == 2
            store.mark = 3
            await remote.delete(7)
            assert wire.bookie.mark == 3

    with Simulation() as sim:
        sim.run(main())


def test_marks_of_the_metadata_store_arrive_also_after_a_break() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            remote.note_mark(41)
            await appended(remote, run(0))
            assert wire.bookie.mark == 41
            wire.pipes.cut()
            remote.note_mark(42)
            await remote.tail(7, fence=False)
            await appended(remote, run(0, ledger_id=8))
            assert wire.bookie.mark == 42

    with Simulation() as sim:
        sim.run(main())


def test_a_defect_while_connecting_is_told_and_does_not_end_the_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            connect, failures = wire.pipes.connect, 4  # of two links, twice

            async def fails(protocol: asyncio.Protocol) -> None:
                nonlocal failures
                failures -= 1
                if failures >= 0:
                    raise AttributeError("a defect")
                await connect(protocol)

            for link in (remote._writes, remote._reads):
                link._connect = fails
            wire.pipes.cut()
            await asyncio.sleep(1)
            await appended(remote, run(0))
            assert await remote.read(7, 0, 0, 100) == [(0, b"x" * 10)]
            told = [each for each in caplog.records if "a defect" in each.getMessage()]
            assert len(told) == 2, "once for each link"
            assert all(each.exc_info for each in told)

    with Simulation() as sim:
        sim.run(main())


def test_a_connection_that_ends_at_once_is_no_defect(tmp_path: Path) -> None:
    """As of a bookie process that is killed while brokers connect to it again."""
    path = f"{tmp_path}/socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def hang_up() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()

        async def main() -> None:
            for _ in range(500):  # one in twenty has ended before it is given to the protocol
                with suppress(OSError):
                    await unix_socket(path)(Speaks())

        uvloop.run(main())
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


class Speaks(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(bytes(100))  # type: ignore[attr-defined]
