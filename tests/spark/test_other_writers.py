"""Spark with Delta reads the table of a topic and cannot write to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsark.runtime import OsDisk
from tests.support.tables import GrowingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITES: dict[str, Callable[[SparkSession, str], Any]] = {
    "optimize": lambda spark, table: spark.sql(f"OPTIMIZE {table}"),
    "delete": lambda spark, table: spark.sql(f"DELETE FROM {table} WHERE entry_id < 5"),
    "update": lambda spark, table: spark.sql(f"UPDATE {table} SET key = 'x'"),
    "vacuum": lambda spark, table: spark.sql(f"VACUUM {table} RETAIN 0 HOURS"),
    "column": lambda spark, table: spark.sql(f"ALTER TABLE {table} ADD COLUMN x INT"),
    "append": lambda spark, table: spark.sql(f"INSERT INTO {table} SELECT * FROM {table}"),
}


@pytest.mark.parametrize("how", WRITES)
def test_spark_reads_and_does_not_write(spark: SparkSession, tmp_path: Path, how: str) -> None:
    grown = GrowingTable(tmp_path)
    for first in range(0, 90, 30):
        grown.attach(0, 5, first, 30)
    table, log = f"delta.`{grown.directory}`", f"{grown.directory}/_delta_log"
    before = OsDisk().list(log)
    assert spark.sql(f"SELECT count(*) FROM {table}").first()[0] == 180
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    with pytest.raises(Exception, match=r"pulsark|PROTOCOL"):
        WRITES[how](spark, table)
    after = [name for name in OsDisk().list(log) if not name.startswith(".")]
    assert after == before
    grown.attach(0, 5, 90, 1)
    assert spark.sql(f"SELECT count(*) FROM {table}").first()[0] == 182
