"""Cursors as bytes: inverse, bounded pieces, small at every density of holes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.cursor.bitmap import WINDOW, decode_entries, encode_entries, pieces
from pulsark.storage.cursor.bundle_cursors import Replay, SavedCursor
from pulsark.storage.cursor.records import (
    BATCH_BYTES,
    CursorIdentity,
    ack_records,
    acked_of,
    pack,
    snapshot_records,
    unpack,
)
from pulsark.storage.cursor.state import AckedSet
from pulsark.storage.position_set import MAX_ENTRY_ID
from pulsark.wire.position import Position
from tests.support.cursors import contents

P = Position

entry_sets = st.one_of(
    st.sets(st.integers(0, 200), min_size=1),
    st.sets(st.integers(0, MAX_ENTRY_ID), min_size=1, max_size=20),
    st.builds(
        lambda start, length, step: set(range(start, start + length * step, step)),
        st.integers(0, 2 * WINDOW),
        st.integers(1, 5000),
        st.integers(1, 300),
    ),
)


@given(entry_sets)
def test_sets_and_bytes_are_inverse(members: set[int]) -> None:
    entries = BitMap(members)
    union = BitMap()
    for piece in pieces(entries):
        assert piece.min() // WINDOW == piece.max() // WINDOW
        data = encode_entries(piece)
        assert len(data) <= WINDOW // 8 + 200
        assert decode_entries(data) == piece
        union |= piece
    assert union == entries


@pytest.mark.parametrize("mean_gap", [2, 4, 8, 12, 16, 24, 32, 64, 128, 256])
@pytest.mark.parametrize("of_holes", [True, False])
def test_no_density_of_holes_is_a_cliff(mean_gap: int, of_holes: bool) -> None:
    """Five million random holes stay below 8 MiB, here at a fiftieth of the size."""
    rng = random.Random(mean_gap)
    end = 100_000 * mean_gap
    lone = BitMap([rng.randrange(end) for _ in range(100_000)])
    entries = BitMap.flip(lone, 0, end) if of_holes else lone
    data = [encode_entries(piece) for piece in pieces(entries)]
    union = BitMap()
    for piece in data:
        union |= decode_entries(piece)
    assert union == entries
    assert sum(map(len, data)) / len(lone) * 5_000_000 < 8 << 20


def test_a_set_that_cannot_be_read_is_an_error() -> None:
    """However it is broken, and without taking the memory that it says it needs."""
    gaps = encode_entries(BitMap(range(0, 40_000, 50)))
    assert gaps[0] == 1
    giant = gaps[:9] + b"\xff\xff\xff\xff" + gaps[13:]
    for broken in (b"", b"\x07abc", b"\x00", b"\x01", gaps[:10], gaps[:-1], gaps[:13], giant):
        with pytest.raises(CorruptEntryError):
            decode_entries(broken)


positions = st.builds(Position, st.integers(5, 8), st.integers(0, 40))


@st.composite
def acked_sets(draw: st.DrawFn) -> AckedSet:
    acked = AckedSet(draw(positions), draw(st.integers(0, 3)))
    for ledger_id in draw(st.sets(st.integers(5, 9))):
        part = AckedSet(acked.mark_delete, acked.era)
        part.acked[ledger_id] = BitMap(draw(st.sets(st.integers(0, 40), min_size=1)))
        acked.merge(part)
    masked = AckedSet(acked.mark_delete, acked.era)
    for position, mask in draw(st.dictionaries(positions, st.integers(1, 2**70))).items():
        masked.masks.put(position, mask)
    acked.merge(masked)
    return acked


@given(acked_sets())
def test_a_cursor_and_its_records_are_inverse(acked: AckedSet) -> None:
    identity = CursorIdentity(7, "topic", "subscription", 99)
    saved = SavedCursor(identity)
    for record in snapshot_records(identity, {"k": "v"}, acked):
        saved.apply(record)
    assert contents(saved.acked) == contents(acked)
    assert saved.properties == {"k": "v"}


@given(st.lists(acked_sets(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_merging_knows_no_order_and_no_repetition(
    parts: list[AckedSet], rng: random.Random
) -> None:
    for part in parts:
        part.era = 1
    one, other = AckedSet(era=1), AckedSet(era=1)
    for part in parts:
        one.merge(part)
    shuffled = parts + rng.sample(parts, rng.randint(0, len(parts)))
    rng.shuffle(shuffled)
    for part in shuffled:
        for record in ack_records(1, part):
            other.merge(acked_of(record.acks))
    assert contents(one) == contents(other)


@given(acked_sets(), acked_sets())
def test_a_later_era_wins_whichever_comes_first(one: AckedSet, other: AckedSet) -> None:
    one.era, other.era = 4, 5
    for order in ((one, other), (other, one)):
        merged = AckedSet()
        for part in order:
            merged.merge(part)
        assert contents(merged) == contents(other)


def test_large_cursors_are_cut() -> None:
    acked = AckedSet(P(1, 0))
    rng = random.Random(1)
    for ledger_id in range(1, 40):
        acked.add_entries(ledger_id, BitMap(rng.sample(range(1, 50_000), 20_000)))
    for ledger_id in range(50, 55):
        for entry_id in range(2000):
            acked.masks.put(P(ledger_id, entry_id), rng.getrandbits(300) | 1)
    identity = CursorIdentity(7, "topic", "subscription", 99)
    entries = list(pack(snapshot_records(identity, {}, acked), 0))
    assert len(entries) > 3
    assert all(len(entry) < 2 * BATCH_BYTES for entry in entries)
    saved = SavedCursor(identity)
    for entry in reversed(entries):
        for record in unpack(entry).records:
            saved.apply(record)
    assert contents(saved.acked) == contents(acked)


@pytest.mark.parametrize("entry", [b"\xff\xff\xff", b"", b"\x08\x02"])
def test_what_cannot_be_understood_is_an_error(entry: bytes) -> None:
    with pytest.raises(StorageError):
        unpack(entry)


class Piece(bytes):
    """Records of a cursor that nobody may append to others one by one."""

    def __radd__(self, before: bytes) -> bytes:
        raise AssertionError(f"{len(before)} bytes are copied for one more cursor")


def test_the_cursors_of_a_topic_are_put_together_in_one_copy() -> None:
    replay = Replay()
    for number in range(3):
        identity = CursorIdentity(number, "topic", f"s{number}", 1)
        for entry in pack(SavedCursor(identity).records(), 1):
            replay.read(entry)
    for _ in replay.pack():
        pass
    for number, (topic_id, records) in replay._untouched.items():
        replay._untouched[number] = topic_id, Piece(records)
    assert replay.table().subscriptions("topic") == ["s0", "s1", "s2"]
