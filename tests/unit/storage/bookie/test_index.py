"""The index against a plain dictionary."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsark.storage.bookie.index import EXTENT_BYTES, BookieIndex, SegmentState
from pulsark.storage.bookie.index_checkpoint import (
    CHECKPOINT_NAME,
    Checkpoint,
    CheckpointDraft,
    Checkpointer,
    JournalOffset,
    load_checkpoint,
)
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

INSTANCE = b"0123456789abcdef"

add = st.tuples(st.just("add"), st.integers(0, 40), st.integers(1, 8), st.integers(20, 20_000))
release = st.tuples(st.just("release"), st.integers(0, 40), st.just(0), st.just(0))
roll = st.tuples(st.just("roll"), st.just(0), st.just(0), st.just(0))
operations = st.lists(st.one_of(add, add, add, release, roll), max_size=40)


class Model:
    """Entry -> (segment, record) for one ledger, the slow way."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, int]] = {}
        self.released = -1
        self.last = -1

    def add(self, first: int, count: int, segment_id: int, offset: int) -> None:
        for entry_id in range(max(first, self.released + 1), first + count):
            self.entries[entry_id] = (segment_id, offset)
        self.last = max(self.last, first + count - 1)

    def release(self, through: int) -> None:
        self.released = max(self.released, through)
        self.last = max(self.last, through)
        self.entries = {e: at for e, at in self.entries.items() if e > self.released}


def play(script: list[tuple[str, int, int, int]]) -> tuple[BookieIndex, Model]:
    index, model = BookieIndex(), Model()
    segment_id, offset = 1, 100
    index.segments[1] = SegmentState(1, 0, 0)
    for what, number, count, size in script:
        if what == "add":
            index.add(7, number, count, number - 1, segment_id, offset, size, number * 9)
            model.add(number, count, segment_id, offset)
            offset += size
        elif what == "release":
            index.release(7, number)
            model.release(number)
        else:
            segment_id, offset = segment_id + 1, 100
            index.segments[segment_id] = SegmentState(segment_id, 0, 0)
    return index, model


@given(operations)
def test_every_entry_is_found_where_it_was_last_written(
    script: list[tuple[str, int, int, int]],
) -> None:
    index, model = play(script)
    found: list[int] = []
    for extent in index.locate(7, 0, 1000):
        for entry_id in range(extent.first, extent.last + 1):
            segment_id, offset = model.entries[entry_id]
            assert extent.segment_id == segment_id
            assert extent.offset <= offset < extent.offset + extent.length
            found.append(entry_id)
    assert found == sorted(model.entries)
    state = index.ledgers.get(7)
    if state is not None:
        assert (state.released, state.last_entry) == (model.released, model.last)


@given(operations, st.integers(0, 45), st.integers(0, 45))
def test_locate_cuts_to_the_range(
    script: list[tuple[str, int, int, int]], first: int, last: int
) -> None:
    index, model = play(script)
    found = [e for s in index.locate(7, first, last) for e in range(s.first, s.last + 1)]
    assert found == sorted(e for e in model.entries if first <= e <= last)


@given(operations)
def test_segments_count_their_extents(script: list[tuple[str, int, int, int]]) -> None:
    index, _ = play(script)
    extents = [s for state in index.ledgers.values() for s in state.extents()]
    for segment in index.segments.values():
        here = [s for s in extents if s.segment_id == segment.segment_id]
        assert segment.extents == len(here)
        assert segment.live == sum(s.size for s in here)
    index.delete(7, 99)
    assert all(s.extents == 0 and s.live == 0 for s in index.segments.values())


@given(operations, st.integers(0, 40))
@example([("add", 1, 1, 100), ("add", 0, 1, 100)], 0)
def test_applying_a_part_again_changes_nothing(
    script: list[tuple[str, int, int, int]], start: int
) -> None:
    index, model = play(script)
    segment_id, offset = 1, 100
    for n, (what, number, count, size) in enumerate(script):
        if what == "add":
            if n >= start:
                index.add(7, number, count, number - 1, segment_id, offset, size)
            offset += size
        elif what == "roll":
            segment_id, offset = segment_id + 1, 100
    for extent in index.locate(7, 0, 1000):
        for entry_id in range(extent.first, extent.last + 1):
            assert extent.offset <= model.entries[entry_id][1] < extent.offset + extent.length
            assert extent.segment_id == model.entries[entry_id][0]


def test_neighbours_share_an_extent() -> None:
    index = BookieIndex()
    index.segments[1] = SegmentState(1, 0, 0)
    for n in range(10_000):
        index.add(1, n, 1, n - 1, 1, n * 200, 150)
    state = index.ledgers[1]
    assert state.words is not None
    assert len(state.words) // 4 <= 10_000 * 200 // EXTENT_BYTES + 1
    assert index.segments[1].live == 10_000 * 150


def test_a_large_record_is_an_extent_of_its_own() -> None:
    index = BookieIndex()
    index.segments[1] = SegmentState(1, 0, 0)
    index.add(1, 0, 1000, -1, 1, 0, 5 << 20)
    index.add(1, 1000, 1, 999, 1, 5 << 20, 100)
    assert [(s.first, s.last, s.length) for s in index.ledgers[1].extents()] == [
        (0, 999, 5 << 20),
        (1000, 1000, 100),
    ]


@settings(max_examples=50)
@given(operations)
def test_checkpoint_round_trip(script: list[tuple[str, int, int, int]]) -> None:
    index, _ = play(script)
    index.fence(3)
    index.delete(4, 1)
    damaged = index.segments[1]
    damaged.damaged, damaged.damage_bound = [(5, 9), (20, 30)], 7
    draft = CheckpointDraft(index, JournalOffset(1, 4711), INSTANCE, {17, 18})
    draft.add(list(index.ledgers.values()))
    disk = SimDisk()
    disk.write_atomic("/checkpoint", draft.finish())
    loaded = load_checkpoint(disk, "/checkpoint", INSTANCE)
    assert isinstance(loaded, Checkpoint)
    assert (loaded.reached, loaded.removing) == (JournalOffset(1, 4711), frozenset({17, 18}))
    again = loaded.index
    again.recount()
    assert again.tombstones == index.tombstones
    assert again.segments == index.segments
    assert again.max_ledger_id == index.max_ledger_id
    assert again.ledgers.keys() == index.ledgers.keys()
    for ledger_id, state in index.ledgers.items():
        other = again.ledgers[ledger_id]
        assert list(other.extents()) == list(state.extents())
        for name in ("fenced", "released", "last_confirmed", "confirmed_bytes", "last_entry"):
            assert getattr(other, name) == getattr(state, name)


def test_what_a_checkpoint_may_hold_keeps_its_tombstone() -> None:
    """A ledger is deleted after its slice was encoded; then the journal goes on elsewhere."""
    index, _ = play([("add", 0, 3, 100)])
    disk = SimDisk()
    disk.make_dirs("/ledgers")

    async def main() -> None:
        one_a_turn = JournalSettings(ledgers_a_turn=1)
        checkpointer = Checkpointer(index, "/ledgers", INSTANCE, one_a_turn, sim.runtime(disk))
        index.fence(8)
        checkpointer.journal_grew(JournalOffset(1, 100), 100, 1)
        writing = asyncio.ensure_future(checkpointer.write(sim.runtime(disk).new_worker("w")))
        await asyncio.sleep(0)
        index.delete(7, 1)
        index.segments[2] = SegmentState(2, 0, 0)
        checkpointer.journal_grew(JournalOffset(2, 100), 100, 1)
        await writing
        index.segment_removed(1)
        assert index.tombstones == {7: 1}

    with Simulation() as sim:
        sim.run(main())
    loaded = load_checkpoint(disk, f"/ledgers/{CHECKPOINT_NAME}", INSTANCE)
    assert isinstance(loaded, Checkpoint)
    assert 7 in loaded.index.ledgers


def test_a_bad_checkpoint_is_refused_with_its_reason() -> None:
    index, _ = play([("add", 0, 3, 100)])
    draft = CheckpointDraft(index, JournalOffset(1, 200), INSTANCE, ())
    draft.add(list(index.ledgers.values()))
    data = draft.finish()
    disk = SimDisk()
    assert load_checkpoint(disk, "/c", INSTANCE) == "no checkpoint"
    for position in range(0, len(data), 7):
        bad = bytearray(data)
        bad[position] ^= 4
        disk.edit("/c", bytes(bad))
        assert isinstance(load_checkpoint(disk, "/c", INSTANCE), str)
    for cut in range(0, len(data), 11):
        disk.edit("/c", data[:cut])
        assert isinstance(load_checkpoint(disk, "/c", INSTANCE), str)
    disk.edit("/c", data)
    assert (
        load_checkpoint(disk, "/c", b"another bookie!!") == "checkpoint belongs to another bookie"
    )
    disk.read_errno = 5
    assert "cannot be read" in str(load_checkpoint(disk, "/c", INSTANCE))
