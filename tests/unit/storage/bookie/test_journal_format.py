"""The journal's bytes: what is written is read back, and nothing else is."""

from __future__ import annotations

import struct
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.storage.bookie import journal_format
from pulsark.storage.bookie.journal_format import (
    FORMAT_VERSION,
    GROUP_HEAD_SIZE,
    SEGMENT_HEAD_SIZE,
    BadRecordError,
    GroupHead,
    Kind,
    SegmentHead,
    Snapshot,
    decode_group_head,
    decode_record_head,
    decode_segment_head,
    decode_snapshot,
    decode_table,
    encode_record,
    from_little_endian,
    group_of,
    little_endian,
    segment_id_of,
    segment_name,
)

ids = st.integers(0, 2**63 - 1)


@given(ids, ids, st.integers(-1, 2**63 - 1), st.lists(st.binary(max_size=50), max_size=6))
def test_record_round_trip(ledger_id: int, first: int, lac: int, payloads: list[bytes]) -> None:
    meta, size = encode_record(Kind.ENTRIES, ledger_id, first, lac, payloads, total=lac)
    data = b"junk" + meta + b"".join(payloads)
    head = decode_record_head(data, 4)
    lengths, checksums = decode_table(data, 4, head)
    assert (head.kind, head.ledger_id, head.first) == (1, ledger_id, first)
    assert (head.value, head.total) == (lac, lac)
    assert head.entries == len(payloads)
    assert list(lengths) == [len(p) for p in payloads]
    assert len(checksums) == len(payloads)
    assert size == head.size == len(data) - 4
    assert head.meta_size == len(meta)


def test_lone_and_listed_payloads_have_one_layout() -> None:
    lone, _ = encode_record(Kind.ENTRIES, 1, 2, 3, [b"abc"])
    pair, _ = encode_record(Kind.ENTRIES, 1, 2, 3, [b"abc", b"d"])
    assert len(pair) - len(lone) == 8
    assert struct.unpack_from("<II", lone, 44)[0] == 3
    assert struct.unpack_from("<II", pair, 44) == (3, 1)


def test_any_changed_byte_of_a_record_is_noticed() -> None:
    payloads = [b"first", b"second one"]
    meta, _ = encode_record(Kind.ENTRIES, 5, 7, 6, payloads)
    for position in range(len(meta)):
        bad = bytearray(meta)
        bad[position] ^= 0x10
        with pytest.raises(BadRecordError):
            decode_table(bytes(bad), 0, decode_record_head(bytes(bad), 0))
    for cut in range(len(meta)):
        with pytest.raises(BadRecordError):
            decode_table(meta[:cut], 0, decode_record_head(meta[:cut], 0))


def test_group_head_is_bound_to_its_place_and_file() -> None:
    head = GroupHead(
        FORMAT_VERSION, 77, 4096, body_size=10, records=1, records_crc=5, max_ledger_id=9
    )
    data = head.encode()
    assert len(data) == GROUP_HEAD_SIZE
    assert decode_group_head(data, 0, 77, 4096) == head
    assert decode_group_head(b"x" + data, 1, None, 4096) == head
    assert decode_group_head(data, 0, 78, 4096) is None
    assert decode_group_head(data, 0, 77, 4097) is None
    assert decode_group_head(data[:-1], 0, 77, 4096) is None
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 1
        assert decode_group_head(bytes(bad), 0, None, 4096) is None


def test_group_checksum_covers_all_records() -> None:
    metas = [encode_record(Kind.ENTRIES, n, 0, -1, [b"p%d" % n])[0] for n in range(3)]
    one = decode_group_head(group_of(metas, 100, 1, 64, 7), 0, 1, 64)
    assert one is not None
    assert one.records == 3
    for others in (metas[::-1], [metas[0], metas[0], metas[2]], metas[:2]):
        other = decode_group_head(group_of(others, 100, 1, 64, 7), 0, 1, 64)
        assert other is not None
        assert one.records_crc != other.records_crc


def test_segment_head_round_trip() -> None:
    head = SegmentHead(9, 2**64 - 1, bytes(range(16)), 1_700_000_000_000)
    data = head.encode()
    assert len(data) == SEGMENT_HEAD_SIZE == 64
    assert decode_segment_head(data + b"more") == (FORMAT_VERSION, head)
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 1
        assert decode_segment_head(bytes(bad)) is None
    assert decode_segment_head(data[:-1]) is None
    assert decode_segment_head(b"") is None


@given(
    st.lists(st.tuples(ids, ids, ids), max_size=3),
    st.lists(st.tuples(ids, ids), max_size=3),
    st.lists(st.tuples(ids, st.integers(-1, 9), st.integers(-1, 9), st.booleans()), max_size=4),
)
def test_snapshot_round_trip(
    segments: list[tuple[int, int, int]],
    tombstones: list[tuple[int, int]],
    ledgers: list[tuple[int, int, int, bool]],
) -> None:
    snapshot = Snapshot(
        12,
        segments,
        tombstones,
        array("q", [row[0] for row in ledgers]),
        array("q", [row[1] for row in ledgers]),
        array("q", [row[1] * 10 for row in ledgers]),
        array("q", [row[2] for row in ledgers]),
        bytes(row[3] for row in ledgers),
    )
    data = snapshot.encode()
    assert decode_snapshot(data) == snapshot
    with pytest.raises(BadRecordError):
        decode_snapshot(data[:-1])
    with pytest.raises(BadRecordError):
        decode_snapshot(data + b"\0")


def test_numbers_are_turned_round_on_a_machine_of_the_other_byte_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = array("q", [1, -2, 2**40])
    stored = little_endian(numbers)
    monkeypatch.setattr(journal_format, "_BIG_ENDIAN", sys.byteorder == "little")
    turned = little_endian(numbers)
    assert struct.unpack("<3q", stored) == struct.unpack(">3q", turned) == tuple(numbers)
    assert from_little_endian("q", turned) == numbers == array("q", [1, -2, 2**40])


def test_segment_names_sort_like_their_numbers() -> None:
    numbers = [1, 9, 10, 255, 256, 2**40]
    names = [segment_name(n) for n in numbers]
    assert names == sorted(names)
    assert [segment_id_of(name) for name in names] == numbers
    for name in ("BOOKIE", "1.journal", "000000000000000g.journal", "0000000000000001.tmp"):
        assert segment_id_of(name) is None
