"""Which files a table had in the past, and what is said where they are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsark.runtime import OsDisk
from pulsark.storage.table.log.time_travel import (
    NoSuchVersionError,
    Version,
    read_log,
    table_at,
    version_at,
    with_later,
)
from tests.support.tables import GrowingTable

DISK = OsDisk()


@pytest.fixture
def table(tmp_path: Path) -> GrowingTable:
    made = GrowingTable(tmp_path)
    made.attach(0, 5, 0, 10)
    made.attach(1, 7, 0, 20)
    made.remove(5)
    made.attach(1, 7, 20, 5)
    return made


def at(table: GrowingTable, version: int) -> Version:
    return table_at(read_log(DISK, [table.directory]), version, DISK, [table.directory])


def ranges(found: Version) -> list[tuple[int, int, int]]:
    return [(file.ledger_id, file.first_entry_id, file.last_entry_id) for file in found.files]


def test_each_version_has_its_files(table: GrowingTable) -> None:
    versions = [at(table, version) for version in range(5)]
    assert [found.version for found in versions] == [0, 1, 2, 3, 4]
    assert [ranges(found) for found in versions] == [
        [],
        [(5, 0, 9)],
        [(5, 0, 9), (7, 0, 19)],
        [(7, 0, 19)],
        [(7, 0, 19), (7, 20, 24)],
    ]


def test_the_version_at_a_time(table: GrowingTable) -> None:
    commits = read_log(DISK, [table.directory])
    times = [commit.time_ms for commit in commits]
    assert times == sorted(times)
    assert version_at(commits, times[0] - 1) == -1
    for commit in commits:
        last = max(other.version for other in commits if other.time_ms == commit.time_ms)
        assert version_at(commits, commit.time_ms) == last
    assert version_at(commits, times[-1] + 1000) == 4


def test_a_version_that_never_was(table: GrowingTable) -> None:
    with pytest.raises(NoSuchVersionError, match="has the versions 0 to 4, and no 5"):
        at(table, 5)


def test_files_that_were_vacuumed_are_named_with_what_is_left(table: GrowingTable) -> None:
    (file,) = at(table, 1).files
    Path(table.directory, file.path).unlink()
    for version in (1, 2):
        with pytest.raises(NoSuchVersionError, match="the versions 3 to 4 are there"):
            at(table, version)
    assert ranges(at(table, 3)) == [(7, 0, 19)]
    assert ranges(at(table, 0)) == []  # it needs none of them


def test_what_was_sealed_later_of_ledgers_that_are_gone(table: GrowingTable) -> None:
    commits, roots = read_log(DISK, [table.directory]), [table.directory]

    def later(version: int, *listed: int) -> tuple[list[tuple[int, int, int]], bool]:
        at_first = table_at(commits, version, DISK, roots)
        found = with_later(at_first, commits, listed, DISK, roots)
        return ranges(Version(0, 0, found.later)), found.later_whole

    assert later(0) == ([(5, 0, 9), (7, 0, 19), (7, 20, 24)], True)
    assert later(0, 5) == ([(7, 0, 19), (7, 20, 24)], True)
    assert later(2) == ([(7, 20, 24)], True)
    assert later(2, 7) == ([], True)
    file = commits[2].adds[0]
    Path(table.directory, file.path).unlink()
    assert later(1) == ([], False)
    assert later(1, 7) == ([], True)


def test_another_root_may_have_the_log_and_the_files(table: GrowingTable, tmp_path: Path) -> None:
    roots = [str(tmp_path / "away"), table.directory]
    commits = read_log(DISK, roots)
    assert ranges(table_at(commits, 1, DISK, roots)) == [(5, 0, 9)]
    with pytest.raises(NoSuchVersionError, match="the log of the table cannot be read"):
        read_log(DISK, roots[:1])


def test_a_log_with_a_gap_is_not_believed(table: GrowingTable) -> None:
    Path(table.directory, "_delta_log", f"{1:020d}.json").unlink()
    with pytest.raises(NoSuchVersionError, match="some are missing"):
        read_log(DISK, [table.directory])


def test_what_a_repair_took_out_of_a_table_is_no_file_of_its_past(table: GrowingTable) -> None:
    (file,) = at(table, 1).files
    Path(table.directory, file.path).unlink()
    commits = read_log(DISK, [table.directory])
    last = commits[-1]
    commits.append(last._replace(version=5, adds=(), removes=("somebody-elses.parquet",)))
    with pytest.raises(NoSuchVersionError, match="the versions 3 to 5 are there"):
        table_at(commits, 1, DISK, [table.directory])
