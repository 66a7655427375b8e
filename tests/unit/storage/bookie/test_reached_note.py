"""A journal that got shorter is damage, and no torn tail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsark.runtime import OsDisk
from pulsark.storage.bookie.reached_note import (
    NOTE_NAME,
    NOTE_SECONDS,
    Reached,
    ReachedNote,
    load_reached,
)

INSTANCE = bytes(range(16))


class StoppedClock:
    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


def noted(path: Path, instance: bytes = INSTANCE) -> Reached | None:
    return load_reached(OsDisk(), str(path), instance)


def test_the_note_is_written_once_a_second_and_for_each_segment(
    tmp_path: Path, clock: StoppedClock
) -> None:
    note = ReachedNote(OsDisk(), clock, str(tmp_path), INSTANCE)
    assert noted(tmp_path) is None
    note.grew(Reached(1, 7, 100))
    note.grew(Reached(1, 7, 200))
    assert noted(tmp_path) == Reached(1, 7, 100)
    clock.now += NOTE_SECONDS
    note.grew(Reached(1, 7, 300))
    assert noted(tmp_path) == Reached(1, 7, 300)
    note.grew(Reached(2, 8, 50))
    assert noted(tmp_path) == Reached(2, 8, 50)
    note.end(Reached(2, 8, 60))
    assert noted(tmp_path) == Reached(2, 8, 60)


def test_a_segment_without_a_group_is_not_noted(tmp_path: Path, clock: StoppedClock) -> None:
    note = ReachedNote(OsDisk(), clock, str(tmp_path), INSTANCE)
    note.end(Reached(1, 7, 100))
    assert noted(tmp_path) is None


def test_a_note_that_is_damaged_or_foreign_says_nothing(
    tmp_path: Path, clock: StoppedClock
) -> None:
    ReachedNote(OsDisk(), clock, str(tmp_path), INSTANCE).grew(Reached(1, 7, 100))
    assert noted(tmp_path, bytes(16)) is None
    whole = (tmp_path / NOTE_NAME).read_bytes()
    for damaged in (b"", whole[:-1], whole[:20] + b"x" + whole[21:], b"x" * 1000):
        (tmp_path / NOTE_NAME).write_bytes(damaged)
        assert noted(tmp_path) is None


def test_a_disk_without_room_for_the_note_stops_nothing(clock: StoppedClock) -> None:
    ReachedNote(OsDisk(), clock, "/nowhere", INSTANCE).grew(Reached(1, 7, 100))
    assert not os.path.exists("/nowhere")
