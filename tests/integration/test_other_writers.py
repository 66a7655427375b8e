"""Other engines read the table of a topic and cannot write to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import table_path
from pulsark.runtime import OsDisk
from pulsark.storage.table.files.record import TableRecord
from pulsark.storage.table.log import checkpoint, delta_log
from pulsark.storage.table.log.delta_log import DeltaLog
from pulsark.storage.table.log.folding import forget, make_base
from tests.support.tables import TOPIC, GrowingTable

WRITES: dict[str, Callable[[str], Any]] = {
    "optimize": lambda uri: DeltaTable(uri).optimize.compact(),
    "z-order": lambda uri: DeltaTable(uri).optimize.z_order(["entry_id"]),
    "delete": lambda uri: DeltaTable(uri).delete("entry_id < 5"),
    "update": lambda uri: DeltaTable(uri).update({"key": "'x'"}),
    "append": lambda uri: write_deltalake(uri, a_row(uri), mode="append"),
    "overwrite": lambda uri: write_deltalake(uri, a_row(uri), mode="overwrite"),
    "restore": lambda uri: DeltaTable(uri).restore(1),
    "polars": lambda uri: pl.read_delta(uri).head(1).write_delta(uri, mode="append"),
}


def a_row(uri: str) -> pa.Table:
    return DeltaTable(uri).to_pyarrow_table().slice(0, 1)


@pytest.fixture
def table(tmp_path: Path) -> GrowingTable:
    grown = GrowingTable(tmp_path)
    for first in range(0, 90, 30):
        grown.attach(0, 5, first, 30)
    return grown


@pytest.mark.parametrize("how", WRITES)
def test_delta_rs_and_polars_do_not_write(table: GrowingTable, how: str) -> None:
    before = OsDisk().list(f"{table.directory}/_delta_log")
    with pytest.raises(Exception, match="pulsark"):
        WRITES[how](table.directory)
    assert OsDisk().list(f"{table.directory}/_delta_log") == before
    assert pl.read_delta(table.directory).height == 180


def test_everybody_reads_and_pulsark_goes_on(
    table: GrowingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_COMMITS", 1)
    assert checkpoint.checkpoint_if_due(OsDisk(), table.directory) == 3
    table.remove(5)
    table.attach(0, 7, 0, 10)
    found = DeltaTable(table.directory)
    assert found.protocol().writer_features == ["pulsark"]
    assert (found.protocol().min_reader_version, found.version()) == (1, 5)
    assert pl.scan_delta(table.directory).select(pl.len()).collect().item() == 20
    files = [found.file_uris()]
    count = duckdb.execute("SELECT count(*) FROM read_parquet(?)", files).fetchone()
    assert count == (20,)


@pytest.mark.parametrize("full", [False, True])
def test_a_vacuum_by_delta_rs_takes_nothing_that_the_table_has(
    table: GrowingTable, full: bool
) -> None:
    table.remove(5)
    table.attach(0, 7, 0, 30)
    stray = Path(table.directory, "partition=0/ledger_id=5/stray.parquet")
    stray.write_bytes(b"nobody's")
    options = {"retention_hours": 0, "enforce_retention_duration": False, "dry_run": False}
    with contextlib.suppress(DeltaError):
        DeltaTable(table.directory).vacuum(full=full, **options)
    assert pl.read_delta(table.directory).height == 60
    assert OsDisk().list(f"{table.directory}/_delta_log")[-1] == f"{5:020d}.json"
    table.attach(0, 7, 30, 1)
    assert pl.read_delta(table.directory).height == 62


def test_a_table_of_an_older_release_is_guarded_by_its_next_attach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    monkeypatch.setattr(delta_log, "_protocol", lambda: old)
    table = GrowingTable(tmp_path)
    table.attach(0, 5, 0, 10)
    monkeypatch.undo()
    asyncio.run(_forget_the_guard(table))
    assert DeltaTable(table.directory).protocol().min_writer_version == 2
    table.attach(0, 5, 10, 10)
    table.attach(0, 5, 20, 10)
    assert DeltaTable(table.directory).protocol().writer_features == ["pulsark"]
    log = DeltaLog(OsDisk(), table.directory)
    has = [any("protocol" in action for action in log.read(v)) for v in log.versions()]
    assert has == [True, False, True, False]
    with pytest.raises(Exception, match="pulsark"):
        WRITES["optimize"](table.directory)


@pytest.mark.parametrize("how", ["optimize", "delete", "append", "update"])
@pytest.mark.parametrize("folded", [False, True])
def test_a_repair_undoes_what_others_did_before_the_table_was_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, folded: bool
) -> None:
    old = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    monkeypatch.setattr(delta_log, "_protocol", lambda: old)
    table = GrowingTable(tmp_path)
    for first in range(0, 90, 30):
        table.attach(0, 5, first, 30)
    monkeypatch.undo()
    asyncio.run(_forget_the_guard(table))
    key = ["ledger_id", "entry_id", "batch_index"]
    before = pl.read_delta(table.directory).sort(key)
    WRITES[how](table.directory)
    if folded:
        make_base(OsDisk(), table.directory, 3)
        forget(OsDisk(), table.directory, 3, 100)
        assert DeltaLog(OsDisk(), table.directory).versions() == [3, 4]
    repair = table.repair()
    assert repair.lost == []
    assert pl.read_delta(table.directory).sort(key).equals(before)
    with pytest.raises(Exception, match="pulsark"):
        WRITES[how](table.directory)
    table.attach(0, 5, 90, 1)
    assert pl.read_delta(table.directory).height == before.height + 2
    assert table.state() == 0
    actions = pl.DataFrame(DeltaTable(table.directory).get_add_actions(flatten=True))
    assert actions["null_count.entry_id"].null_count() == 0, "statistics are there again"


async def _forget_the_guard(table: GrowingTable) -> None:
    store, path = MemoryMetadataStore(table._tree), table_path(TOPIC)
    found = await store.get(path)
    assert found is not None
    record = replace(TableRecord.decode(path, found.value), guarded=False)
    await store.put(path, record.encode(), found.version)
