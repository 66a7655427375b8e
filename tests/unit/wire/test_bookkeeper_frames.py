"""BookKeeper's protocol: frames as Java writes them, and no harm from any others."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import CorruptEntryError, ProtocolError
from pulsark.wire.bookkeeper.answers import (
    Added,
    AddRefused,
    Answer,
    AnswerReader,
    BatchAnswer,
    ReadAnswer,
)
from pulsark.wire.bookkeeper.digests import PLAIN, DigestType, LedgerKey
from pulsark.wire.bookkeeper.entries import decode_entry
from pulsark.wire.bookkeeper.requests import (
    AddFrames,
    Flag,
    encode_adds,
    encode_batch_read,
    encode_fencing_read,
    encode_read,
)

KEY = "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
LIMIT = 1 << 20


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def adds(payloads: list[bytes], key: LedgerKey = PLAIN, first: int = 0) -> AddFrames:
    return encode_adds(7, first, first - 1, 0, payloads, key)


def stored_in(frame: bytes) -> bytes:
    """The entry within an add."""
    return frame[28:]


def added(entry_id: int, ledger_id: int = 7, code: int = 0) -> bytes:
    return struct.pack(">IIiqq", 24, 0x02010000, code, ledger_id, entry_id)


def read_answer(entry_id: int, stored: bytes, code: int = 0) -> bytes:
    return struct.pack(">IIiqq", 24 + len(stored), 0x02020000, code, 7, entry_id) + stored


def batch_answer(first: int, request: int, stored: list[bytes], code: int = 0) -> bytes:
    body = b"".join(struct.pack(">i", len(each)) + each for each in stored)
    head = struct.pack(">IIiqqq", 32 + len(body), 0x02070000, code, 7, first, request)
    return head + body


def fed(data: bytes, *cuts: int) -> list[Answer]:
    reader = AnswerReader(LIMIT)
    answers: list[Answer] = []
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        answers += reader.feed(data[start:end])
    return answers


def test_the_keys_of_ledgers_are_javas() -> None:
    assert PLAIN.master_key.hex() == KEY
    secret = LedgerKey(password=b"secret").master_key
    assert secret.hex() == "e793cbc379107648537183605cd361d3bb789a39"


def test_an_add_is_what_java_sends() -> None:
    frames = encode_adds(7, 1, 0, 3, [b"hi"], PLAIN)
    expected = hexed(
        f"0000003e 02010000 {KEY} 0000000000000007 0000000000000001 0000000000000000"
        "0000000000000005 c037e6b5 6869"
    )
    assert b"".join(frames.buffers) == expected
    assert (frames.size, frames.largest) == (len(expected), len(expected))


def test_reads_are_what_java_sends() -> None:
    assert encode_read(7, 1) == hexed("00000014 02020000 0000000000000007 0000000000000001")
    assert encode_fencing_read(7, -1, PLAIN) == hexed(
        f"00000028 02020001 0000000000000007 ffffffffffffffff {KEY}"
    )
    assert encode_batch_read(7, 0, 1, 100, LIMIT) == hexed(
        "00000028 02070000 0000000000000007 0000000000000000 0000000000000001 00000064"
        "0000000000100000"
    )


def test_a_run_is_its_entries_one_by_one_whatever_its_size() -> None:
    for size in (0, 100, 9000):
        payloads = [bytes([i]) * size for i in range(5)]
        whole = encode_adds(7, 10, 8, 1000, payloads, PLAIN, Flag.RECOVERY_ADD)
        single = [
            encode_adds(7, 10 + i, 8, 1000 + i * size, [payload], PLAIN, Flag.RECOVERY_ADD)
            for i, payload in enumerate(payloads)
        ]
        expected = [b"".join(frames.buffers) for frames in single]
        assert b"".join(whole.buffers) == b"".join(expected)
        assert (whole.size, whole.largest) == (sum(map(len, expected)), len(expected[0]))


@pytest.mark.parametrize("digest", DigestType)
def test_entries_are_read_as_they_were_written(digest: DigestType) -> None:
    key = LedgerKey(digest, b"password")
    stored = stored_in(b"".join(adds([b"payload"], key, first=3).buffers))
    entry = decode_entry(stored, 7, 3, key)
    assert (entry.entry_id, entry.last_confirmed, entry.length) == (3, 2, 7)
    assert entry.payload == b"payload"
    assert decode_entry(stored, 7, -1, key) == entry


@given(st.integers(0, 41), st.integers(1, 255))
def test_no_changed_byte_of_an_entry_is_believed(place: int, change: int) -> None:
    stored = bytearray(stored_in(b"".join(adds([b"seven"]).buffers)))
    stored[place % len(stored)] ^= change
    with pytest.raises(CorruptEntryError):
        decode_entry(bytes(stored), 7, 0, PLAIN)


def test_an_entry_of_another_place_is_not_believed() -> None:
    stored = stored_in(b"".join(adds([b"seven"]).buffers))
    for ledger_id, entry_id, held in ((8, 0, stored), (7, 1, stored), (7, 0, stored[:35])):
        with pytest.raises(CorruptEntryError):
            decode_entry(held, ledger_id, entry_id, PLAIN)


def test_confirmed_entries_that_follow_each_other_are_one_event() -> None:
    data = b"".join(map(added, range(5, 205)))
    assert fed(data) == [Added(7, 5, 204)]
    # The rest of a cut answer is part of what comes later.
    assert fed(data, 100, 2800, 2801) == [
        Added(7, 5, 7),
        Added(7, 8, 104),
        Added(7, 105, 204),
    ]


def test_a_gap_a_refusal_and_another_ledger_end_an_event() -> None:
    data = added(0) + added(1) + added(3) + added(4, code=104) + added(5) + added(6, ledger_id=8)
    assert fed(data) == [
        Added(7, 0, 1),
        Added(7, 3, 3),
        AddRefused(7, 4, 104),
        Added(7, 5, 5),
        Added(8, 6, 6),
    ]


def test_entries_and_refusals_come_out_of_reads() -> None:
    data = read_answer(3, b"stored") + read_answer(-1, b"", code=1)
    assert fed(data, 7, 30) == [ReadAnswer(7, 3, 0, b"stored"), ReadAnswer(7, -1, 1, b"")]


def test_batches_have_their_entries_or_a_code() -> None:
    data = batch_answer(3, 9, [b"a", b"", b"ccc"]) + added(0) + batch_answer(3, 10, [], code=2)
    assert fed(data, 40) == [
        BatchAnswer(7, 3, 0, 9, [b"a", b"", b"ccc"]),
        Added(7, 0, 0),
        BatchAnswer(7, 3, 2, 10, []),
    ]


@given(st.lists(st.integers(1, 400), max_size=6))
def test_where_the_stream_is_cut_does_not_matter(steps: list[int]) -> None:
    data = added(0) + read_answer(1, b"x" * 200) + added(1) + batch_answer(0, 1, [b"y" * 90, b""])
    cuts = [c for c in map(sum, (steps[: i + 1] for i in range(len(steps)))) if c < len(data)]
    assert fed(data, *cuts) == fed(data)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">IIiqq", LIMIT + 1, 0x02020000, 0, 7, 0),  # too large to be waited for
        struct.pack(">IIiqq", 0xFFFFFFFF, 0x02020000, 0, 7, 0),
        struct.pack(">IIiqq", 23, 0x02020000, 0, 7, 0),
        struct.pack(">IIiqq", 25, 0x02010000, 0, 7, 0) + b"x",
        struct.pack(">IIiqq", 24, 0x02030000, 0, 7, 0),
        struct.pack(">IIiqq", 24, 0x03010000, 0, 7, 0),
        struct.pack(">IIiqq", 28, 0x02070000, 0, 7, 0) + bytes(4),
        struct.pack(">IIiqqqi", 36, 0x02070000, 0, 7, 0, 1, 5),
        struct.pack(">IIiqqqi", 36, 0x02070000, 0, 7, 0, 1, -1),
        struct.pack(">IIiqqqh", 34, 0x02070000, 0, 7, 0, 1, 0),
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(20),
    ],
)
def test_what_is_no_answer_ends_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        fed(data)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_garbage_is_an_error_or_waited_for(garbage: bytes, step: int) -> None:
    reader = AnswerReader(4096)
    with suppress(ProtocolError):
        for start in range(0, len(garbage), step):
            for answer in reader.feed(garbage[start : start + step]):
                assert isinstance(answer, Answer)


@given(st.data())
def test_a_damaged_stream_is_an_error_or_other_answers(data: st.DataObject) -> None:
    stream = bytearray(
        added(0) + read_answer(1, b"x" * 20) + batch_answer(0, 1, [b"y" * 9, b""]) + added(1)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        for answer in fed(bytes(stream)):
            assert isinstance(answer, Answer)
