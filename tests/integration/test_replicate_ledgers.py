"""Storage roots that lose files: they are refused, shown, and filled again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.jobs.job import Context
from pulsark.jobs.replicate_ledgers import JOB
from pulsark.jobs.runner import run_program
from pulsark.runtime import OsDisk
from tests.support.seal_contract import (
    BOOKIES,
    SETTINGS,
    NoSpark,
    consumed,
    publish,
    rows,
    run_job,
    tables,
)
from tests.support.standalone import Standalone
from tests.support.tables import attached_files, check_files

ENV = {**SETTINGS, "PULSARK_sealByJobs": "true"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", *BOOKIES, env=ENV) as broker:
        for i in range(4):
            publish(broker, "t", 25 * i, 25)
            assert run_job(broker, "t", NoSpark()) == 0
        yield broker


def replicate(broker: Standalone, *words: str) -> int:
    urls = ["--service-url", broker.service_url, "--admin-url", broker.web_url]
    context = Context(JOB.name, given_spark=NoSpark())  # type: ignore[arg-type]
    return run_program(JOB, [*words, *urls], context)


def check(broker: Standalone, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pulsark", "ledgers", "check", *words,
         "--admin-url", broker.web_url],
        capture_output=True, text=True, timeout=60, check=False,
        env={"COLUMNS": "80", "PATH": "/usr/bin:/bin"}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return done.returncode, done.stdout


def all_equal(broker: Standalone, count: int) -> None:
    logs = [attached_files(OsDisk(), str(root)) for root in tables(broker)]
    assert len(logs) == 3
    assert logs[0] == logs[1] == logs[2]
    for root in tables(broker):
        check_files(OsDisk(), str(root), logs[0][1])
    assert sum(file.rows for file in logs[0][1]) == count


def data_files(root: Path) -> list[Path]:
    return sorted(root.glob("partition=*/*/*.parquet"))


def test_a_wiped_root_is_refused_until_it_is_filled_again(
    broker: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = check(broker)
    assert code == 0
    assert said.endswith("sealed ledgers on 3 storage roots, 0 lack copies\n")
    before = consumed(broker, "t", "before", 100)
    wiped = tables(broker)[0].parents[2]
    broker.stop()
    shutil.rmtree(wiped)
    broker.start()
    assert consumed(broker, "t", "after", 100) == before
    publish(broker, "t", 100, 20)
    # Sealing goes on without it, and does not fill it by the way.
    assert run_job(broker, "t", NoSpark()) == 0
    assert not list(wiped.rglob("*"))
    code, said = check(broker)
    assert code == 1
    assert "is refused: its file STORAGE_ROOT" in " ".join(said.split())
    assert "2 of 3" in said
    assert max(map(len, said.splitlines())) <= 80
    found = json.loads(check(broker, "--json")[1])
    assert list(found["refusedRoots"]) == [str(wiped)]
    assert found["lacking"] == found["ledgers"] > 1

    capsys.readouterr()
    assert replicate(broker) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["recoveredRoots"] == [str(wiped)]
    assert summary["written"] == len(data_files(tables(broker)[0])) > 1
    all_equal(broker, 120)
    assert check(broker)[0] == 0
    publish(broker, "t", 120, 10)
    assert run_job(broker, "t", NoSpark()) == 0
    all_equal(broker, 130)
    assert replicate(broker) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["written"] == 0


def test_files_that_are_missing_or_damaged_are_written_again(
    broker: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, three = tables(broker)
    missing, cut = data_files(one)[:2]
    flipped = data_files(two)[2]
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    before = consumed(broker, "t", "before", 100)
    found = json.loads(check(broker, "--json")[1])
    assert found["lacking"] >= 1
    assert {row["state"] for row in found["found"]} <= {"damaged", "missing"}
    assert replicate(broker) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["written"] == 2
    assert check(broker)[0] == 0, "sizes are right"
    assert replicate(broker, "--verify") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["written"] == 1
    all_equal(broker, 100)
    assert consumed(broker, "t", "after", 100) == before
    # What nobody has is said, and nothing is made up for it.
    for root in (one, two, three):
        data_files(root)[0].unlink()
    assert replicate(broker) == 1
    assert "copies or roots are still not there" in capsys.readouterr().err


def test_a_commit_that_a_root_lost_comes_back_with_the_root(broker: Standalone) -> None:
    one = tables(broker)[0]
    marker = one.parents[2] / "STORAGE_ROOT"
    broker.stop()
    marker.unlink()
    (one / "_delta_log" / f"{0:020d}.json").unlink()
    broker.start()
    assert check(broker)[0] == 1
    assert replicate(broker) == 0
    all_equal(broker, 100)
    assert marker.exists()


def test_a_data_directory_that_was_moved_has_its_tables(broker: Standalone) -> None:
    before = consumed(broker, "t", "before", 100)
    broker.stop()
    old, broker.data_dir = broker.data_dir, broker.data_dir.with_name("moved")
    old.rename(broker.data_dir)
    broker.start()
    assert consumed(broker, "t", "after", 100) == before
    publish(broker, "t", 100, 5)
    assert run_job(broker, "t", NoSpark()) == 0
    all_equal(broker, 105)
    assert check(broker)[0] == 0
    assert not old.exists()


def test_a_log_that_lost_a_commit_is_shown_and_made_whole(broker: Standalone) -> None:
    one, two, three = tables(broker)
    (one / "_delta_log" / f"{1:020d}.json").unlink()
    newest = max((two / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    code, said = check(broker)
    assert code == 1
    assert "0 lack copies" in said
    assert f"isdamagedonstorageroot{one.parents[2]}" in "".join(said.split())
    found = json.loads(check(broker, "--json")[1])
    assert [(row["directory"], row["state"]) for row in found["logs"]] == [
        (str(one), "damaged"),
        (str(two), "damaged"),
    ]
    assert replicate(broker) == 0
    all_equal(broker, 100)
    assert check(broker)[0] == 0
    shutil.rmtree(three / "_delta_log")
    assert check(broker)[0] == 1
    assert replicate(broker) == 0
    all_equal(broker, 100)


@pytest.mark.slow
@pytest.mark.feature("F70")
def test_a_root_that_is_lost_for_good_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def disks(*names: str) -> dict[str, str]:
        return {
            "PULSARK_ledgerDirectories": ",".join(f"{tmp_path}/{name}" for name in names),
            "PULSARK_journalDirectories": ",".join(f"{tmp_path}/journal-{name}" for name in names),
        }

    with Standalone(tmp_path / "data", *BOOKIES, env={**ENV, **disks("a", "b", "c")}) as broker:
        publish(broker, "t", 0, 50)
        publish(broker, "u", 0, 10)
        assert run_job(broker, "", NoSpark()) == 0
        before = consumed(broker, "t", "before", 50)
    shutil.rmtree(tmp_path / "b")
    with Standalone(tmp_path / "data", *BOOKIES, env={**ENV, **disks("a", "d", "c")}) as broker:
        assert consumed(broker, "t", "after", 50) == before
        publish(broker, "t", 50, 5)
        assert run_job(broker, "t", NoSpark()) == 0
        code, said = check(broker)
        assert code == 1
        assert f"storageroot{tmp_path}/b/tableisnone" in "".join(said.split())
        assert json.loads(check(broker, "--json")[1])["lostRoots"] == [f"{tmp_path}/b/table"]
        capsys.readouterr()
        assert replicate(broker) == 0
        summary = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (summary["movedTables"], summary["written"] > 1) == (2, True)
        assert not (tmp_path / "b").exists(), "nothing is written where the root was"
        assert check(broker)[0] == 0
        for where in ("a", "c", "d"):
            assert sorted(rows(t) for t in tables_on(tmp_path / where)) == [10, 55]
        publish(broker, "t", 55, 5)
        assert run_job(broker, "t", NoSpark()) == 0
        assert max(rows(t) for t in tables_on(tmp_path / "d")) == 60
    with Standalone(tmp_path / "data", *BOOKIES, env={**ENV, **disks("a", "d", "c")}) as broker:
        assert consumed(broker, "t", "again", 60)[:1] == before[:1]
        assert check(broker)[0] == 0


def test_tables_get_the_roots_of_bookies_that_were_added(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", env=ENV) as broker:
        publish(broker, "t", 0, 20)
        assert run_job(broker, "t", NoSpark()) == 0
    with Standalone(tmp_path / "data", *BOOKIES, env=ENV) as broker:
        publish(broker, "t", 20, 5)
        assert run_job(broker, "t", NoSpark()) == 0, "one root is all there is of this table"
        assert json.loads(check(broker, "--json")[1])["found"][0]["copies"] == 1
        assert replicate(broker) == 0
        assert check(broker)[0] == 0
        all_equal(broker, 25)
        publish(broker, "t", 25, 5)
        assert run_job(broker, "t", NoSpark()) == 0
        all_equal(broker, 30)


def tables_on(root: Path) -> list[Path]:
    return [log.parent for log in root.rglob("_delta_log")]


@pytest.mark.feature("F70")
def test_two_roots_of_three_lost_and_one_survives(broker: Standalone) -> None:
    before = consumed(broker, "t", "before", 100)
    lost = [table.parents[2] for table in tables(broker)[1:]]
    broker.stop()
    for root in lost:
        shutil.rmtree(root)
    broker.start()
    publish(broker, "t", 100, 5)
    assert run_job(broker, "t", NoSpark()) == 1, "one copy is fewer than are needed"
    assert consumed(broker, "t", "after", 105)[:1] == before[:1]
    assert replicate(broker) == 0
    assert run_job(broker, "t", NoSpark()) == 0
    all_equal(broker, 105)
    assert rows(tables(broker)[2]) == 105
