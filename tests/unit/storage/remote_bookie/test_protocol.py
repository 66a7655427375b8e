"""Frames and what is in them, from bytes of any kind in pieces of any size."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import (
    CorruptEntryError,
    NoSuchEntryError,
    ProtocolError,
    StorageError,
    UnreadableTableError,
)
from pulsark.storage.bookie.bookie import LedgerTail
from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
from pulsark.storage.bookie.journal_format import (
    BadRecordError,
    Kind,
    encode_record,
    received_record,
)
from pulsark.storage.remote_bookie import messages
from pulsark.storage.remote_bookie.messages import Hello
from pulsark.storage.remote_bookie.protocol import (
    Flag,
    Frame,
    FrameReader,
    FrameType,
    frame_head,
)
from pulsark.storage.remote_bookie.shared_memory import SharedMemory
from tests.sim.pipe import Pipes
from tests.sim.simulation import Simulation
from tests.unit.storage.remote_bookie.test_remote_bookie import Wire

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.integers(0, 2**64 - 1),
        st.binary(max_size=60),
        st.integers(0, 255),
    ),
    max_size=8,
)


def frame(kind: int, number: int, body: bytes, flags: int = 0) -> bytes:
    return frame_head(kind, number, len(body), flags) + body


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_out_as_they_went_in(
    frames: list[tuple[int, int, bytes, int]], sizes: list[int]
) -> None:
    data = b"".join(frame(*each) for each in frames)
    reader, found, start, n = FrameReader(60), list[Frame](), 0, 0
    while start < len(data):
        size = sizes[n % len(sizes)]
        found += reader.feed(data[start : start + size])
        start, n = start + size, n + 1
    assert [(f.kind, f.number, f.body, f.flags) for f in found] == frames


def test_a_frame_that_is_too_large_is_refused_at_its_head() -> None:
    reader = FrameReader(60)
    with pytest.raises(ProtocolError, match="a frame of 61 bytes is larger than the 60 allowed"):
        list(reader.feed(frame_head(FrameType.ADD, 1, 61)))


def test_what_the_taker_of_a_frame_allows_holds_for_the_next_one() -> None:
    reader, sizes = FrameReader(10), []
    data = frame(1, 1, bytes(10)) + frame(2, 2, bytes(500))
    for found in reader.feed(data):
        sizes.append(len(found.body))
        reader.body_bytes_max = 500
    assert sizes == [10, 500]


def test_values_come_back() -> None:
    tail = LedgerTail(5, 7, 1 << 40)
    assert messages.decode_tail(messages.encode_tail(tail)) == tail
    entries = [(5, b""), (9, b"x" * 70_000)]
    assert messages.decode_entries(b"".join(messages.encode_entries(entries))) == entries
    hello = Hello("b", "00", "s", 5)
    assert messages.decode_hello(hello.encode()) == hello
    for excerpt in (None, JournalExcerpt("/j", 7, {1: 2}, [])):
        assert messages.decode_excerpt(messages.encode_excerpt(excerpt)) == excerpt


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoSuchEntryError("x"), NoSuchEntryError),
        (UnreadableTableError("x"), CorruptEntryError),
        (StorageError("x"), StorageError),
        (OSError("x"), StorageError),
    ],
)
def test_an_error_keeps_its_nearest_kind(error: Exception, kind: type[StorageError]) -> None:
    found = messages.decode_error(messages.encode_error(error))
    assert type(found) is kind
    assert str(found) == "x"


@pytest.mark.parametrize("body", [b"", b"\xff", b"\xc8x"])
def test_an_error_that_is_not_known_is_still_one(body: bytes) -> None:
    assert type(messages.decode_error(body)) is StorageError


@given(st.binary(max_size=100))
def test_bytes_of_any_kind_are_values_or_a_protocol_error(body: bytes) -> None:
    decoders: list[Any] = [
        messages.decode_hello,
        messages.decode_ledger,
        messages.decode_release,
        messages.decode_range,
        messages.decode_tail,
        messages.decode_entries,
        messages.decode_excerpt,
    ]
    for decode in decoders:
        with contextlib.suppress(ProtocolError):
            decode(body)


@given(st.data())
def test_a_record_in_pieces_is_taken_unless_its_meta_has_changed(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.binary(max_size=30), min_size=1, max_size=4))
    meta, size = encode_record(Kind.ENTRIES, 7, 0, -1, payloads, 0)
    record = bytearray(meta + b"".join(payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=3)))

    def pieces() -> list[memoryview]:
        whole = memoryview(bytes(record))
        return [whole[i:k] for i, k in zip([0, *cuts], [*cuts, size], strict=True)]

    head, its_meta, rest = received_record(pieces())
    assert (head.size, head.entries) == (size, len(payloads))
    assert (its_meta, b"".join(rest)) == (meta, b"".join(payloads))
    record[data.draw(st.integers(0, len(meta) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadRecordError):
        received_record(pieces())


def record(kind: Kind = Kind.ENTRIES, ledger_id: int = 7, first: int = 0, count: int = 1) -> bytes:
    payloads = [b"x"] * count
    meta, _ = encode_record(kind, ledger_id, first, -1, payloads, 0)
    return meta + b"".join(payloads)


def in_memory(place: int) -> bytes:
    body = messages.encode_place(place) + record()[:-1]
    return frame(FrameType.ADD, 2, body, Flag.MEMORY)


HELLO = frame(FrameType.HELLO, 1, Hello().encode())
MEMORY = SharedMemory(4096)
SHARED = Hello(memoryBytes=MEMORY.size, memoryFd=MEMORY.fd)
SHARED_HELLO = frame(FrameType.HELLO, 1, SHARED.encode())
TOO_MUCH = Hello(memoryBytes=1 << 40, memoryFd=MEMORY.fd)
HOSTILE = {
    "not a hello": frame(FrameType.ADD, 1, record()),
    "a hello of no JSON": frame(FrameType.HELLO, 1, b"{"),
    "a large hello": frame_head(FrameType.HELLO, 1, 1 << 20),
    "an unknown type": HELLO + frame(99, 2, b""),
    "an answer": HELLO + frame(FrameType.ADDED, 2, b""),
    "a huge add": HELLO + frame_head(FrameType.ADD, 2, 1 << 31),
    "no record": HELLO + frame(FrameType.ADD, 2, b"x" * 100),
    "no entries": HELLO + frame(FrameType.ADD, 2, record(count=0)),
    "a fence as an add": HELLO + frame(FrameType.ADD, 2, record(Kind.FENCE)),
    "a snapshot as an add": HELLO + frame(FrameType.ADD, 2, record(Kind.SNAPSHOT)),
    "a ledger below zero": HELLO + frame(FrameType.ADD, 2, record(ledger_id=-1)),
    "an entry below zero": HELLO + frame(FrameType.ADD, 2, record(first=-1)),
    "two records": HELLO + frame(FrameType.ADD, 2, record() * 2),
    "an add in memory that is not shared": HELLO + in_memory(0),
    "an add in memory without a place": HELLO + frame(FrameType.ADD, 2, b"1234", Flag.MEMORY),
    "an add in memory without a record": HELLO + frame(FrameType.ADD, 2, bytes(20), Flag.MEMORY),
    "memory of a size that is not allowed": frame(FrameType.HELLO, 1, TOO_MUCH.encode()),
    "a place below zero": SHARED_HELLO + in_memory(-1),
    "a place behind the memory": SHARED_HELLO + in_memory(MEMORY.size),
    "a short tail": HELLO + frame(FrameType.TAIL, 2, b""),
}


class Probe(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.received = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_end_their_connection_and_nothing_else(name: str) -> None:
    async def main() -> None:
        wire = Wire(sim)
        await wire.start()
        pipes: Pipes = wire.pipes
        bystander, probe = Probe(), Probe()
        await pipes.connect(bystander)
        bystander.transport.write(HELLO)
        await pipes.connect(probe)
        probe.transport.write(HOSTILE[name])
        await probe.ended
        last = list(FrameReader(1 << 20).feed(probe.received))[-1]
        assert last.kind == FrameType.ERROR
        assert wire.bookie.max_ledger_id == -1
        bystander.transport.write(frame(FrameType.ADD, 2, record()))
        await asyncio.sleep(1)
        assert [f.kind for f in FrameReader(1 << 20).feed(bystander.received)] == [
            FrameType.HELLO,
            FrameType.ADDED,
        ]
        await wire.stop()

    with Simulation() as sim:
        sim.run(main())


def test_who_says_nothing_is_sent_away() -> None:
    async def main() -> None:
        wire = Wire(sim)
        await wire.start()
        probe = Probe()
        await wire.pipes.connect(probe)
        await probe.ended
        assert asyncio.get_running_loop().time() > 9
        await wire.stop()

    with Simulation() as sim:
        sim.run(main())
