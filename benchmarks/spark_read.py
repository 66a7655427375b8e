"""How fast Spark reads a topic from the journal's tail: ``python -m benchmarks.spark_read``.

Publishes messages of 100 bytes with the Java client to a broker that seals nothing, then reads
them with ``spark.read`` into the noop sink, with all columns and with two of them. The first read
of a JVM is shown but does not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pulsark
from benchmarks.goals import Goal, add_check, exit_code
from benchmarks.load import LoadClient
from examples.flights.process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_SECOND = 500_000
VALUE_BYTES = 100
KEYS = 100_000
SETTINGS = {"PULSARK_sealEnabled": "false"}
"""The broker's, by its environment."""
SELECTIONS = {
    "all columns": "",
    "value, publish_time": "value,publish_time",
}


def fill(service_url: str, topic: str, rows: int) -> None:
    """Fill a topic with messages that have a key, an event time and a value of their own."""
    load = LoadClient()
    try:
        began = time.perf_counter()
        name = f"persistent://public/default/{topic}"
        load.call("fill", url=service_url, topic=name, size=VALUE_BYTES, count=rows, keys=KEYS)
        print(f"published {rows / (time.perf_counter() - began):,.0f} messages/s", flush=True)
    finally:
        load.close()


def local_session(name: str, cores: int, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the settings that Pulsark ships, and little to say."""
    # Python workers import what is here.
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    settings = {"spark.ui.enabled": "false", **(config or {})}
    spark = pulsark.session(name, master=f"local[{cores}]", config=settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, options: dict[str, str], columns: str) -> float:
    """Seconds that one batch read takes."""
    reader = spark.read.format("pulsark").options(**options)
    if columns:
        reader = reader.option("columns", columns)
    began = time.perf_counter()
    reader.load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace, home: Path) -> list[Goal]:
    """Print all rates; the goal is for all columns."""
    os.environ.update(SETTINGS)
    medians = []
    rows = arguments.rows
    with StandaloneProcess(home / "data") as broker:
        topic = "spark-read"
        fill(broker.service_url, topic, rows)
        options = {
            "serviceUrl": broker.service_url,
            "adminUrl": broker.admin_url,
            "topic": topic,
        }
        spark = local_session("spark-read", arguments.cores)
        count = spark.read.format("pulsark").options(**options, columns="entry_id").load().count()
        if count != rows:
            raise RuntimeError(f"{count} rows of {rows}")
        for name, columns in SELECTIONS.items():
            first = rows / read(spark, options, columns)
            rates = [rows / read(spark, options, columns) for _ in range(arguments.runs)]
            medians.append(statistics.median(rates))
            print(
                f"{name:20} {medians[-1]:>10,.0f} rows/s  "
                f"({min(rates):,.0f} to {max(rates):,.0f}, first {first:,.0f})"
            )
        spark.stop()
    return [Goal("journal's tail, all columns, rows/s", medians[0], "at least", ROWS_PER_SECOND)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-read-") as home:
        goals = measure(chosen, Path(home))
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
