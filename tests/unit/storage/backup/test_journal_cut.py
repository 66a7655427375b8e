"""The part of a journal that belongs to an earlier state of the metadata."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import LEDGER_ID_COUNTER
from pulsark.runtime import OsDisk, Runtime
from pulsark.storage.backup.journal_cut import cut_at, newest_mark, segments_in
from pulsark.storage.bookie.fleet import BookieHome, open_fleet
from pulsark.storage.bookie.identity import load_identity
from pulsark.storage.bookie.journal_format import segment_name
from pulsark.storage.bookie.journal_recovery import RecoveredJournal, recover_journal
from pulsark.storage.bookie.journal_settings import JournalSettings
from tests.sim.bookies import append

STEPS = 30
DISK = OsDisk()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[BookieHome, list[int]]:
    """A journal in which entry n of ledger 0 follows change n of the metadata, and their marks.

    Change 20 releases the entries to 9, after which segments are removed; they are kept here, as
    what was copied before is.
    """
    path = tmp_path_factory.mktemp("bookie")
    home = BookieHome(str(path / "journal"), str(path / "ledgers"))
    marks = []
    (path / "kept").mkdir()

    async def scenario() -> None:
        metadata = MemoryMetadataStore()
        settings = JournalSettings(journal_max_size=16 << 10)
        fleet = await open_fleet([home], settings, metadata, Runtime())
        (bookie,) = fleet.values()
        ledger_id = await metadata.next_id(LEDGER_ID_COUNTER)
        for number in range(STEPS):
            await metadata.put("/a", b"%d" % number)
            marks.append(metadata.mark)
            if number == 20:
                await bookie.release(ledger_id, 9)
            await append(bookie, ledger_id, number, [bytes(2000)])
            for segment in (path / "journal").glob("*.journal"):
                with suppress(FileNotFoundError):
                    shutil.copy(segment, path / "kept" / segment.name)
        await bookie.close()

    asyncio.run(scenario())
    assert set(segments_in(DISK, home.journal_dir)) < set(segments_in(DISK, str(path / "kept")))
    return BookieHome(str(path / "kept"), home.ledger_dir), marks


def cut(home: BookieHome, to: Path, mark: int) -> RecoveredJournal:
    """What a start finds in a copy of the journal that was cut."""
    directory = str(to / "journal")
    shutil.copytree(home.journal_dir, directory)
    end = cut_at(DISK, directory, mark)
    assert end is not None
    for number in segments_in(DISK, directory):
        path = f"{directory}/{segment_name(number)}"
        if number == end.segment_id:
            DISK.truncate(path, end.size)
        elif number not in end.older:
            DISK.remove(path)
    identity = load_identity(DISK, home.ledger_dir)
    assert identity is not None
    return recover_journal(DISK, directory, str(to / "ledgers"), identity.instance_id)


@pytest.mark.parametrize("step", range(STEPS))
def test_the_journal_as_it_was_before_the_next_change(
    journal: tuple[BookieHome, list[int]], tmp_path: Path, step: int
) -> None:
    home, marks = journal
    found = cut(home, tmp_path, marks[step])
    assert (found.report.torn, found.report.damaged) == ([], [])
    assert found.index.mark == marks[step]
    state = found.index.ledgers[0]
    assert state.last_entry == step
    assert state.released == (9 if step >= 20 else -1)
    if step < 20:
        assert [n for n in range(step + 1) if not list(found.index.locate(0, n, n))] == []


def test_a_mark_above_all_takes_nothing_off(
    journal: tuple[BookieHome, list[int]], tmp_path: Path
) -> None:
    home, marks = journal
    assert newest_mark(DISK, home.journal_dir) == marks[-1]
    found = cut(home, tmp_path, marks[-1] + 1)
    assert found.index.ledgers[0].last_entry == STEPS - 1


def test_a_mark_below_all_leaves_nothing(journal: tuple[BookieHome, list[int]]) -> None:
    home, _ = journal
    end = cut_at(DISK, home.journal_dir, 0)
    assert end is not None
    assert end.segment_id == segments_in(DISK, home.journal_dir)[0]
    assert end.older == {}


@pytest.mark.parametrize("size", [0, 20, 100])
def test_a_segment_that_was_just_being_made_takes_no_other_s_place(
    journal: tuple[BookieHome, list[int]], tmp_path: Path, size: int
) -> None:
    home, marks = journal
    whole = shutil.copytree(home.journal_dir, tmp_path / "whole")
    last = segments_in(DISK, str(whole))[-1]
    begun = (whole / segment_name(last)).read_bytes()[:size]
    (whole / segment_name(last + 1)).write_bytes(begun)
    found = cut(BookieHome(str(whole), home.ledger_dir), tmp_path, marks[-1] + 1)
    assert (found.report.torn, found.report.damaged) == ([], [])
    assert found.index.ledgers[0].last_entry == STEPS - 1


def test_a_segment_whose_beginning_is_damaged_is_cut_with_all_before_it(
    journal: tuple[BookieHome, list[int]], tmp_path: Path
) -> None:
    home, marks = journal
    whole = shutil.copytree(home.journal_dir, tmp_path / "whole")
    last = segments_in(DISK, str(whole))[-1]
    segment = bytearray((whole / segment_name(last)).read_bytes())
    segment[100] ^= 1
    (whole / segment_name(last)).write_bytes(segment)
    found = cut(BookieHome(str(whole), home.ledger_dir), tmp_path, marks[-1] + 1)
    assert len(found.report.damaged) == 1
    assert found.index.ledgers[0].last_entry == STEPS - 1
