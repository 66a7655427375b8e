"""What a bookie of BookKeeper is believed when it is read, and what is asked again."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from pulsark.errors import (
    BookieAwayError,
    CorruptEntryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.storage.bookie.bookie import LedgerTail
from pulsark.storage.bookkeeper.bookie import BookKeeperBookie
from pulsark.storage.bookkeeper.encoder import LedgerKeys, RunEncoder
from pulsark.storage.bookkeeper.limits import READ_BYTES_MAX, ClientSettings
from pulsark.storage.bookkeeper.link import Address
from pulsark.wire.bookkeeper.digests import PLAIN
from pulsark.wire.bookkeeper.requests import encode_adds

SETTINGS = ClientSettings(connect_seconds=10, read_seconds=10)
HANG_UP = -1


def stored(entry_id: int, payload: bytes = b"payload", unconfirmed: int = 0) -> bytes:
    """An entry as a bookie keeps it; each has seven bytes. So many before it may not count."""
    confirmed = entry_id - 1 - unconfirmed
    frames = encode_adds(7, entry_id, confirmed, entry_id * 7, [payload], PLAIN)
    return b"".join(frames.buffers)[28:]


@dataclass
class Server:
    """A bookie that holds what a test gives it, right or wrong, and remembers what it was asked."""

    entries: dict[int, bytes] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)
    """Of the next answers, instead of true ones."""
    asked: list[tuple[int, ...]] = field(default_factory=list)
    """Operation, entry, flags, and for batches how many and how much."""
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                answer = self.answer(await reader.readexactly(size))
                if answer is None:
                    break
                writer.write(struct.pack(">I", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    def answer(self, body: bytes) -> bytes | None:
        head, ledger_id, entry_id = struct.unpack_from(">Iqq", body)
        operation, flags = head >> 16 & 0xFF, head & 0xFFFF
        code = self.codes.pop(0) if self.codes else 0
        if code == HANG_UP:
            return None
        batch = b""
        if operation == 7:
            request, count, most = struct.unpack_from(">qiq", body, 20)
            self.asked.append((operation, entry_id, flags, count, most))
            batch = struct.pack(">q", request)
        else:
            self.asked.append((operation, entry_id, flags))
        place = entry_id if entry_id >= 0 else max(self.entries, default=0)
        if not code and place not in self.entries:
            code = 2 if self.entries else 1
        data = b""
        if not code and operation == 7:
            while place in self.entries and count > 0:
                data += struct.pack(">i", len(self.entries[place])) + self.entries[place]
                place, count = place + 1, count - 1
        elif not code:
            data = self.entries[place]
        return struct.pack(">Iiqq", head & 0xFFFF0000, code, ledger_id, entry_id) + batch + data

    # As the ``Whereabouts`` of the bookie.

    @property
    def bookie_id(self) -> str:
        return "bookie-1"

    async def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    async def check_instance(self) -> None:
        """Always the same."""


def run(scenario: Callable[[BookKeeperBookie, Server], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server()
        listening = await asyncio.start_server(server.serve, "127.0.0.1")
        server.port = listening.sockets[0].getsockname()[1]
        keys = LedgerKeys()
        bookie = BookKeeperBookie(server, keys, RunEncoder(keys), SETTINGS)
        bookie.open()
        try:
            await scenario(bookie, server)
        finally:
            await bookie.close()
            listening.close()

    asyncio.run(main())


def test_several_entries_are_one_request_with_bounds() -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in range(10)}
        read = await bookie.read(7, 3, 8, 5000)
        assert read == [(n, b"payload") for n in range(3, 9)]
        assert len(await bookie.read(7, 0, 1 << 60, 1 << 60)) == 10
        assert server.asked == [(7, 3, 0, 6, 5000), (7, 0, 0, 1 << 20, READ_BYTES_MAX)]

    run(scenario)


def test_entries_before_a_damaged_one_are_good() -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in range(5)}
        server.entries[2] = server.entries[2][:-1] + b"?"
        server.entries[3] = stored(4)
        assert [n for n, _ in await bookie.read(7, 0, 4, 5000)] == [0, 1]
        for n in (2, 3):
            for last in (n, 4):
                with pytest.raises(CorruptEntryError, match=rf"bookie-1: .* entry 7:{n} "):
                    await bookie.read(7, n, last, 5000)
        assert [n for n, _ in await bookie.read(7, 4, 9, 5000)] == [4]

    run(scenario)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, NoSuchLedgerError),
        (2, NoSuchEntryError),
        (101, StorageError),
        (106, StorageError),
        (107, StorageError),
        (4711, StorageError),
    ],
)
def test_only_a_bookie_that_is_sure_says_that_there_is_none(
    code: int, kind: type[StorageError]
) -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in range(5)}
        server.codes = [code]
        with pytest.raises(StorageError) as raised:
            await bookie.read(7, 4, 4, 5000)
        assert type(raised.value) is kind
        server.codes = [code]
        if code in (1, 2):
            assert await bookie.tail(7, fence=True) == LedgerTail(-1, -1)
        else:
            with pytest.raises(StorageError):
                await bookie.tail(7, fence=True)

    run(scenario)


def test_a_batch_that_fails_is_not_a_gap() -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in range(5)}
        server.codes = [101]
        with pytest.raises(StorageError, match="its disk failed"):
            await bookie.read(7, 0, 4, 5000)
        assert len(server.asked) == 1

    run(scenario)


def test_a_gap_is_looked_behind() -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in (0, 3, 5, 40)}
        assert await bookie.read(7, 1, 9, 5000) == [(3, b"payload")]
        with pytest.raises(NoSuchEntryError):
            await bookie.read(7, 1, 2, 5000)
        with pytest.raises(NoSuchEntryError):
            await bookie.read(7, 41, 50, 5000)
        before = len(server.asked)
        with pytest.raises(NoSuchEntryError):
            await bookie.read(7, 6, 100, 5000)
        assert len(server.asked) - before < 30, "not each of what may be a million"

    run(scenario)


@pytest.mark.parametrize("damaged", [3, 5])
def test_an_absent_entry_is_absent_whatever_is_wrong_with_later_ones(damaged: int) -> None:
    """A recovery would take it for one that may exist, and stop."""

    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in (0, 3, 5)}
        server.entries[damaged] = server.entries[damaged][:-1] + b"?"
        with pytest.raises(NoSuchEntryError, match="no entry 7:1"):
            await bookie.read(7, 1, 9, 5000)

    run(scenario)


def test_the_end_of_a_ledger_is_that_of_its_last_entry() -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in range(5)}
        tail = await bookie.tail(7, fence=True)
        assert tail == LedgerTail(3, 4, 28)
        assert tail.last_payload == b"payload"
        assert server.asked == [(2, -1, 1)]
        server.entries[4] = stored(4, unconfirmed=1)
        assert await bookie.tail(7, fence=True) == LedgerTail(2, 4, 21)
        assert server.asked[1:] == [(2, -1, 1), (2, 2, 0)]
        del server.entries[2]
        assert await bookie.tail(7, fence=False) == LedgerTail(2, 4, -1), "the length is not known"
        server.entries[4] = server.entries[4][:-1] + b"?"
        with pytest.raises(CorruptEntryError):
            await bookie.tail(7, fence=True)

    run(scenario)


def test_a_request_whose_connection_ends_is_sent_once_more() -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        server.entries = {n: stored(n) for n in range(5)}
        server.codes = [HANG_UP]
        assert await bookie.read(7, 0, 0, 1) == [(0, b"payload")]
        server.codes = [HANG_UP, HANG_UP]
        with pytest.raises(BookieAwayError):
            await bookie.read(7, 0, 4, 5000)
        assert len(await bookie.read(7, 0, 4, 5000)) == 5
        server.codes = [HANG_UP]
        assert (await bookie.tail(7, fence=True)).last_entry_id == 4

    run(scenario)


def test_space_is_nothing_that_these_bookies_can_be_told_about() -> None:
    async def scenario(bookie: BookKeeperBookie, server: Server) -> None:
        await bookie.delete(7)
        await bookie.release(7, 4)
        assert await bookie.excerpt(7, 0, 4) is None
        assert await bookie.recycle() == 1, "something is left"
        assert server.asked == []

    run(scenario)
