"""``pulsark doctor --data-dir``: what is wrong with a stopped data directory."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import google_crc32c
import pytest
from typer.testing import CliRunner

from pulsark.cli.app import app
from pulsark.cli.doctor.data_dir import examine, run_data_doctor
from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding, shown
from pulsark.cli.doctor.stopped import Stopped
from pulsark.cli.terminal.errors import CommandError
from pulsark.config.settings import Settings
from pulsark.config.sources import load_settings
from pulsark.errors import ConfigError
from pulsark.metadata.paths import table_path
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.runtime import OsDisk, Runtime
from pulsark.storage.backup.data_dir import DataDir
from pulsark.storage.bookie.bookie import EntryRun
from pulsark.storage.bookie.fleet import open_fleet
from pulsark.storage.bookie.journal_settings import JournalSettings
from pulsark.storage.table.files.record import DataFile, TableRecord, table_directory
from pulsark.storage.table.log.delta_log import DeltaLog, commit_of
from pulsark.storage.table.root_identity import commission
from pulsark.wire.topic_name import TopicName


def settings(path: Path, bookies: int = 1) -> Settings:
    return load_settings(flags={"dataDir": str(path), "bookies": bookies}).settings


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A data directory whose bookies hold an entry of ledger 0."""
    asyncio.run(use(DataDir.of(settings(tmp_path / "data", 2))))
    return tmp_path / "data"


async def use(data: DataDir) -> None:
    runtime = Runtime()
    runtime.disk.make_dirs(data.path)
    metadata = await SqliteMetadataStore.open(data.metadata_path, runtime)
    fleet = await open_fleet(data.homes, JournalSettings(), metadata, runtime)
    await commission(data.storage_roots, metadata, runtime)
    ledger_id = await metadata.next_id("/counters/ledger-id")
    for bookie in fleet.values():
        done = asyncio.get_running_loop().create_future()
        bookie.append(EntryRun(ledger_id, 0, -1, [b"entry"]), done.set_result)
        await done
        await bookie.close()
    await metadata.close()


def findings(path: Path) -> dict[str, Finding]:
    return {each.check: each for each in examine(Stopped(settings(path)))}


def test_a_sound_directory(used: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in used.rglob("*") if path.is_file()}
    found = findings(used)
    assert {each.status for each in found.values()} == {OK}
    assert {"metadata", "bookie-1", "bookie-2", "age", "journal", "root", "tables"} <= set(found)
    after = {path: path.stat().st_mtime_ns for path in used.rglob("*") if path.is_file()}
    assert {path: time for path, time in after.items() if path in before} == before


def test_without_its_metadata_store(used: Path) -> None:
    (used / "metadata.db").unlink()
    found = findings(used)
    assert found["metadata"].status == FAILURE
    assert "pulsark restore" in found["metadata"].todo
    assert "and this one is unreadable" in found["bookie-1"].found
    assert "--adopt" in found["bookie-1"].todo
    assert "went back" in found["age"].found


def test_a_damaged_value_can_be_accepted_as_lost(used: Path) -> None:
    with closing(sqlite3.connect(used / "metadata.db", isolation_level=None)) as file:
        file.execute("UPDATE node SET value = X'7B7D' WHERE parent = '/storage-roots'")
    stopped = Stopped(settings(used))
    damaged = [each for each in examine(stopped) if "is damaged" in each.found]
    assert len(damaged) == 2
    for each in damaged:
        (command,) = (line for line in each.todo.splitlines() if "--accept-loss" in line)
        words = shlex.split(command.partition(" (")[0])
        run = CliRunner().invoke(app, [*words[1:], "--json"])
        assert run.exit_code == 0
        told = json.loads(run.output)
        assert told["accepted"] == words[-1]
        assert "is gone" in told["done"]
    assert [path.read_bytes() for path in (used / "lost").iterdir()] == [b"{}", b"{}"]
    assert not Stopped(settings(used)).store.damaged
    run = CliRunner().invoke(app, words[1:])
    assert isinstance(run.exception, CommandError)


@pytest.mark.parametrize("command", [["doctor"], ["backup", "copy"]])
def test_metadata_that_are_elsewhere_are_not_missed_here(
    tmp_path: Path, command: list[str]
) -> None:
    # A restore would be the wrong thing to do about it.
    conf = tmp_path / "broker.conf"
    conf.write_text("metadataStoreUrl=zk:zk1:2181\n")
    words = [*command, "--data-dir", str(tmp_path), "--conf", str(conf)]
    run = CliRunner().invoke(app, words)
    assert isinstance(run.exception, ConfigError)
    assert str(run.exception).startswith("metadataStoreUrl=zk:zk1:2181: ")
    assert "docs/cluster.md" in str(run.exception)


def test_what_cannot_be_accepted_is_said(used: Path) -> None:
    run = CliRunner().invoke(app, ["doctor", "--data-dir", str(used), "--accept-loss", "all"])
    assert "the path of a damaged value" in str(run.exception)


def test_a_table_that_is_ahead_and_lacks_a_file(used: Path) -> None:
    topic = TopicName.parse("persistent://public/default/t")
    root = str(used / "bookies" / "bookie-1" / "ledgers" / "table")
    directory = table_directory(root, topic, "1" * 32)
    file = DataFile(
        "partition=-1/ledger_id=0/part-1.parquet",
        -1,
        0,
        0,
        9,
        10,
        100,
        google_crc32c.value(bytes(100)),
        {},
    )
    record = TableRecord("1" * 32, 1, (directory,)).intending(2, [file], [])

    async def write(record: TableRecord) -> None:
        store = await SqliteMetadataStore.open(str(used / "metadata.db"), Runtime())
        await store.put(table_path(topic), record.encode())
        await store.close()

    asyncio.run(write(record))
    log = DeltaLog(OsDisk(), directory)
    log.create(record)
    log.write(1, commit_of(record))
    lost = findings(used)["tables"]
    assert (lost.status, "lacks 1 of 1 files" in lost.found) == (FAILURE, True)
    assert "pulsark tables repair persistent://public/default/t " in lost.todo
    path = Path(directory, file.path)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(file.size))
    assert findings(used)["tables"].status == OK
    path.write_bytes(b"x" + bytes(file.size - 1))
    damaged = findings(used)["tables"]
    assert (damaged.status, str(path) in damaged.found) == (FAILURE, True)
    assert "pulsark tables repair persistent://public/default/t " in damaged.todo
    other = Path(directory.replace("bookie-1", "bookie-2"), file.path)
    other.parent.mkdir(parents=True)
    other.write_bytes(bytes(file.size))
    assert findings(used)["tables"].status == WARNING
    other.unlink()
    path.write_bytes(bytes(file.size - 1))
    assert "lacks 1 of 1 files" in findings(used)["tables"].found
    path.write_bytes(bytes(file.size))
    commit = log.path + "/00000000000000000001.json"
    os.rename(commit, f"{directory}/kept")
    assert findings(used)["tables"].status == OK, "the attach may be under way"
    asyncio.run(write(record.done()))
    behind = findings(used)["tables"]
    assert (behind.status, "ends with attach 0 of 1" in behind.found) == (FAILURE, True)
    os.rename(f"{directory}/kept", commit)
    assert findings(used)["tables"].status == OK
    log.write(2, commit_of(record.intending(3, [], [file])))
    ahead = [each for each in examine(Stopped(settings(used))) if each.check == "tables"]
    assert "has attach 2, the metadata store knows 1" in ahead[0].found


def test_directories_of_another_bookie(used: Path) -> None:
    places = used / "bookies"
    (places / "bookie-1").rename(places / "moved")
    (places / "bookie-2").rename(places / "bookie-1")
    (places / "moved").rename(places / "bookie-2")
    found = findings(used)
    assert (found["bookie-1"].status, found["bookie-2"].status) == (FAILURE, FAILURE)


def test_directories_that_came_back_empty(used: Path) -> None:
    shutil.rmtree(used / "bookies" / "bookie-2")
    found = findings(used)
    assert "is empty" in found["bookie-2"].found
    assert found["root"].status == FAILURE


@pytest.mark.parametrize("lost", ["journal", "ledgers"])
def test_a_lost_identity_is_copied_from_the_other_directory(used: Path, lost: str) -> None:
    place = used / "bookies" / "bookie-1"
    (place / lost / "BOOKIE").unlink()
    found = findings(used)["bookie-1"]
    assert (found.status, f"{lost} holds no BOOKIE file" in found.found) == (FAILURE, True)
    subprocess.run(found.todo.splitlines()[-1], shell=True, check=True)
    assert findings(used)["bookie-1"].status == OK


def test_a_damaged_journal(used: Path) -> None:
    segment = next((used / "bookies" / "bookie-1" / "journal").glob("*.journal"))
    damaged = bytearray(segment.read_bytes())
    damaged[80] ^= 1
    segment.write_bytes(damaged)
    shutil.copy(segment, segment.with_name("0000000000000002.journal"))
    stopped = Stopped(settings(used))
    first = next(each for each in examine(stopped) if each.check == "journal")
    assert first.status == FAILURE
    assert "the bytes [64, 192) cannot be read" in first.found
    assert segment.read_bytes() == damaged


def test_the_command(used: Path) -> None:
    run = CliRunner().invoke(app, ["doctor", "--data-dir", str(used)])
    assert run.exit_code == 0
    assert run.output.endswith("Nothing is wrong here.\n")
    (used / "metadata.db").unlink()
    run = CliRunner().invoke(app, ["doctor", "--data-dir", str(used), "--json"])
    assert run.exit_code == 1
    assert {"check": "age", "status": FAILURE}.items() <= json.loads(run.output)[3].items()


def test_a_command_to_copy_is_not_broken_in_the_middle_of_a_word() -> None:
    path = "/a/path/" + "x" * 80
    lines = shown(Finding("metadata", FAILURE, "bad", f"pulsark restore {path}")).splitlines()
    assert any(line.endswith(path) for line in lines)


def test_of_one_bookie_no_copies_on_others_are_spoken_of(tmp_path: Path) -> None:
    asyncio.run(use(DataDir.of(settings(tmp_path / "data"))))
    (segment,) = (tmp_path / "data/bookies/bookie-1/journal").glob("*.journal")
    data = bytearray(segment.read_bytes())
    data[data.index(b"entry")] ^= 1
    segment.write_bytes(bytes(data))
    (found,) = (e for e in examine(Stopped(settings(tmp_path / "data"))) if e.status == FAILURE)
    assert found.todo.startswith("pulsark doctor --data-dir")


def test_a_damaged_segment_and_the_way_out(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (segment,) = (used / "bookies/bookie-1/journal").glob("*.journal")
    data = bytearray(segment.read_bytes())
    data[data.index(b"entry")] ^= 1
    data += b"junk behind a group that was whole: it had been acknowledged"
    segment.write_bytes(bytes(data))
    found = [each for each in examine(Stopped(settings(used))) if each.status == FAILURE]
    assert len(found) == 1
    what = f"bookie-1/{segment.name}"
    assert "1 entries fail their checksum: 0:0" in found[0].found
    assert "with copies on other bookies" in found[0].todo
    assert f"--accept-loss {what}" in found[0].todo
    assert run_data_doctor(str(used), None, what, as_json=False)
    assert "are given up" in capsys.readouterr().out
    assert {each.status for each in examine(Stopped(settings(used)))} == {OK}
    with pytest.raises(CommandError, match="nothing of this segment is damaged"):
        run_data_doctor(str(used), None, what, as_json=False)
    with pytest.raises(CommandError, match="no journal of bookie-9"):
        run_data_doctor(str(used), None, f"bookie-9/{segment.name}", as_json=False)
