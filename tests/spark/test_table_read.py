"""Spark reads the table of a topic as any other Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.tables import NOW, GrowingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_reads_a_table_with_plain_delta(spark: SparkSession, tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    table.attach(0, 5, 0, 10)
    table.attach(1, 7, 0, 20)
    rows = spark.read.format("delta").load(table.directory)
    assert rows.count() == 60
    assert rows.where("ledger_id = 7 AND partition = 1").count() == 40
    assert rows.where(f"publish_time = timestamp_millis({NOW + 3})").count() == 4
    first = rows.where("ledger_id = 5 AND entry_id = 3 AND batch_index = 1").first()
    assert first is not None
    assert (first["key"], bytes(first["value"]), first["properties"]) == (
        "k1", b"value 3.1", {"n": "3"},
    )  # fmt: skip
    table.remove(5)
    assert spark.read.format("delta").load(table.directory).count() == 40
