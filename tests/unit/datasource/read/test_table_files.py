"""Reads from the files of a table: the same rows as from the broker, or the broker's."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pulsark.datasource.options.options import Options
from pulsark.datasource.plan.plan import pieces
from pulsark.datasource.read import file_rows as file_rows_module
from pulsark.datasource.read import reader as reader_module
from pulsark.datasource.read.filters import RowFilter, condition
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.reader import FilteringReader
from pulsark.rows import ROW_SCHEMA
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.fake_broker import FakeBroker
from tests.support.tables import NOW, entries, entry

COLUMNS = tuple(ROW_SCHEMA.names)
RAW = layout_of(Options.parse({"topic": "t"}), dict)
Rows = list[dict[str, Any]]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    monkeypatch.setattr(reader_module, "BATCH_FILES_BYTES", 0)
    monkeypatch.setattr(reader_module.split_partitions, "__defaults__", (0,))
    with FakeBroker() as fake:
        yield fake


def options(broker: FakeBroker, **raw: str) -> Options:
    given = {"adminUrl": broker.admin_url, "pollTimeoutMs": "2000", "topic": "t"}
    return Options.parse(given | raw, streaming=False)


def read(broker: FakeBroker, *filters: Filter, **raw: str) -> Rows:
    reader = FilteringReader(options(broker, **raw), RAW, COLUMNS)
    assert list(reader.pushFilters(list(filters))) == []
    found = [rows for split in reader.partitions() for rows in reader.read(split)]
    assert all(rows.schema == ROW_SCHEMA for rows in found)
    return [row for rows in found for row in rows.to_pylist()]


def through_the_broker(broker: FakeBroker, **raw: str) -> Rows:
    return read(broker, readTableFiles="false", **raw)


def filled(broker: FakeBroker, directory: Path) -> str:
    """Two ledgers, of which the first is sealed in two files and the second in part."""
    topic = broker.create("t")
    for _ in range(2):
        broker.roll(topic)
        broker.publish(topic, entries(40))
    first, second = broker.topics[topic][-1].ledgers
    broker.seal(topic, first, 25, str(directory))
    broker.seal(topic, first, 15, str(directory))
    broker.seal(topic, second, 20, str(directory))
    return topic


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.parquet"))


def test_rows_of_files_are_those_of_entries(broker: FakeBroker, tmp_path: Path) -> None:
    filled(broker, tmp_path)
    wanted = through_the_broker(broker)
    assert len(wanted) > 80
    broker.reads = 0
    assert read(broker) == wanted
    assert broker.reads < 3  # the journal's tail only


def test_any_range_and_any_cut_gives_the_same_rows(broker: FakeBroker, tmp_path: Path) -> None:
    filled(broker, tmp_path)
    ids = [row["message_id"] for row in through_the_broker(broker)]

    @settings(max_examples=12, deadline=None)
    @given(st.lists(st.integers(0, len(ids) - 1), min_size=2, max_size=2), st.integers(1, 30))
    def check(ends: list[int], partitions: int) -> None:
        start, end = sorted(ends)
        given = {
            "startingOffsets": json.dumps({"t": ids[start]}),
            "endingOffsets": json.dumps({"t": ids[end]}),
            "minPartitions": str(partitions),
        }
        assert [row["message_id"] for row in read(broker, **given)] == ids[start : end + 1]

    check()


def test_markers_in_a_file_are_no_rows(broker: FakeBroker, tmp_path: Path) -> None:
    topic = broker.create("t")
    marker = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, marker_type=1)
    broker.publish(topic, [build_entry(marker, b""), entry(1), build_entry(marker, b"")])
    (ledger_id,) = broker.topics[topic][-1].ledgers
    broker.seal(topic, ledger_id, 3, str(tmp_path))
    assert [row["entry_id"] for row in read(broker)] == [1]
    assert read(broker) == through_the_broker(broker)


def gone(file: Path) -> None:
    file.unlink()


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def a_bit_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def another_file(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("harm", [gone, cut_short, a_bit_flipped, another_file])
def test_what_is_wrong_with_a_file_is_read_from_the_broker(
    broker: FakeBroker, tmp_path: Path, harm: Any
) -> None:
    filled(broker, tmp_path)
    wanted = through_the_broker(broker)
    harm(files(tmp_path)[0])
    assert read(broker) == wanted
    for file in files(tmp_path)[1:]:
        file.unlink()
    assert read(broker) == wanted


def test_the_rest_of_a_file_that_breaks_midway_comes_from_the_broker(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = broker.create("t")
    rng = random.Random(1)
    broker.publish(topic, [entry(i, value=rng.randbytes(60_000)) for i in range(60)])
    (ledger_id,) = broker.topics[topic][-1].ledgers
    broker.seal(topic, ledger_id, 60, str(tmp_path))
    wanted = through_the_broker(broker)
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    file.write_bytes(data)
    broker.reads = 0
    assert read(broker) == wanted
    assert 0 < broker.reads <= 2


def test_a_split_carries_the_files_that_it_reads(broker: FakeBroker, tmp_path: Path) -> None:
    filled(broker, tmp_path)
    reader = FilteringReader(options(broker, minPartitions="8"), RAW, COLUMNS)
    for partition in reader.partitions():
        for split in partition.splits:  # type: ignore[attr-defined]
            found = list(pieces(split))
            named = {file.path for _, file in found if file is not None}
            held = {file.path for each in split.files.files.values() for file in each}
            assert named == held
            assert sum(part.entries for part, _ in found) == split.entries


# -- filters -------------------------------------------------------------------------------------


def test_filters_give_the_rows_that_they_name(broker: FakeBroker, tmp_path: Path) -> None:
    filled(broker, tmp_path)
    rows = through_the_broker(broker)
    first, second = sorted({row["ledger_id"] for row in rows})
    time = rows[50]["publish_time"]
    cases: list[tuple[Filter, Any]] = [
        (EqualTo(("ledger_id",), second), lambda row: row["ledger_id"] == second),
        (In(("ledger_id",), (first, 99)), lambda row: row["ledger_id"] == first),
        (GreaterThan(("entry_id",), 17), lambda row: row["entry_id"] > 17),
        (In(("entry_id",), (3, 30)), lambda row: row["entry_id"] in (3, 30)),
        (EqualTo(("partition",), 0), lambda row: False),
        (EqualTo(("partition",), -1), lambda row: True),
        (EqualTo(("key",), "k3"), lambda row: row["key"] == "k3"),
        (EqualNullSafe(("key",), None), lambda row: row["key"] is None),
        (In(("key",), ("k1", None)), lambda row: row["key"] == "k1"),
        (LessThanOrEqual(("publish_time",), time), lambda row: row["publish_time"] <= time),
        (IsNotNull(("event_time",)), lambda row: row["event_time"] is not None),
        (IsNull(("event_time",)), lambda row: row["event_time"] is None),
        (EqualTo(("value",), b"value 7"), lambda row: row["value"] == b"value 7"),
    ]
    for pushed, holds in cases:
        wanted = [row for row in rows if holds(row)]
        assert read(broker, pushed) == wanted, pushed
        assert read(broker, pushed, readTableFiles="false") == wanted, pushed
    both = read(broker, EqualTo(("ledger_id",), second), In(("entry_id",), (0, 5, 39)))
    assert {(row["ledger_id"], row["entry_id"]) for row in both} == {
        (second, 0), (second, 5), (second, 39),
    }  # fmt: skip


def test_ids_narrow_the_plan(broker: FakeBroker, tmp_path: Path) -> None:
    topic = filled(broker, tmp_path)
    _, second = broker.topics[topic][-1].ledgers
    reader = FilteringReader(options(broker, minPartitions="1"), RAW, COLUMNS)
    given = [EqualTo(("ledger_id",), second), GreaterThan(("entry_id",), 35)]
    assert list(reader.pushFilters(given)) == []
    (partition,) = reader.partitions()
    assert [s.spans[0][:3] for s in partition.splits] == [(second, 36, 39)]  # type: ignore[attr-defined]
    assert list(reader.pushFilters([EqualTo(("partition",), 3)])) == []
    assert reader.partitions() == []


def test_row_groups_without_wanted_rows_are_not_read(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create("t")
    rng = random.Random(1)
    broker.publish(topic, [entry(i, value=rng.randbytes(60_000)) for i in range(60)])
    (ledger_id,) = broker.topics[topic][-1].ledgers
    broker.seal(topic, ledger_id, 60, str(tmp_path))
    asked: list[bool] = []
    really = RowFilter.may_match

    def counted(self: RowFilter, *given: Any) -> bool:
        asked.append(really(self, *given))
        return asked[-1]

    monkeypatch.setattr(RowFilter, "may_match", counted)
    time = through_the_broker(broker)[55]["publish_time"]
    assert time.timestamp() * 1000 == NOW + 55
    for pushed in (EqualTo(("publish_time",), time), EqualTo(("sequence_id",), 55)):
        asked.clear()
        assert [row["entry_id"] for row in read(broker, pushed)] == [55]
        assert len(asked) > 2
        assert asked.count(True) == 1


def test_what_a_projection_wants_of_many_row_groups_is_one_batch(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create("t")
    rng = random.Random(1)
    broker.publish(topic, [entry(i, value=rng.randbytes(60_000)) for i in range(60)])
    (ledger_id,) = broker.topics[topic][-1].ledgers
    broker.seal(topic, ledger_id, 60, str(tmp_path))
    (file,) = files(tmp_path)
    assert pq.ParquetFile(file).num_row_groups > 3

    def sizes(*columns: str) -> list[int]:
        reader = FilteringReader(options(broker, minPartitions="1"), RAW, columns)
        (split,) = reader.partitions()
        found = [rows.to_pylist() for rows in reader.read(split)]
        assert [row["entry_id"] for rows in found for row in rows] == list(range(60))
        return [len(rows) for rows in found]

    assert sizes("entry_id") == [60]
    assert len(sizes("entry_id", "value")) >= 3
    monkeypatch.setattr(file_rows_module, "BATCH_ROWS", 25)
    assert len(sizes("entry_id")) >= 3
    assert max(sizes("entry_id")) <= 25


def test_filters_that_are_left_to_spark(broker: FakeBroker) -> None:
    for pushed in (
        Not(EqualTo(("key",), "a")),
        StringStartsWith(("key",), "a"),
        EqualTo(("properties",), {}),
        EqualTo(("no_column",), 1),
        EqualTo(("key", "inner"), "a"),
        EqualTo(("partition",), "1"),
        EqualTo(("publish_time",), datetime(2026, 1, 1)),
    ):
        assert condition(pushed, RAW.simple_types, RAW.stored) is None
