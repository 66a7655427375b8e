"""How fast Spark reads a sealed topic, beside its own Delta: ``python -m benchmarks.spark_sealed``.

Publishes messages of 100 bytes with the Java client, each with a key and an event time, waits
until all are in the topic's table, and reads them into the noop sink: as a topic with
``format("pulsark")`` and as a table with ``format("delta")``, with the same columns, in turns. The
first read of each does not count. Two of ten columns are read in three ways; the goal is for
``key`` and ``event_time``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.goals import Goal, add_check, exit_code
from benchmarks.spark_read import fill, local_session
from benchmarks.usage import Spent
from examples.flights.process import StandaloneProcess
from pulsark.datasource.options.columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OF_DELTA = 0.4
PROJECTED = 2.5
TOPIC = "spark-sealed"
SETTINGS = {"PULSARK_sealEnabled": "true", "PULSARK_sealFreshnessSeconds": "2"}
"""The broker's, by its environment."""
SEALED_WITHIN_SECONDS = 1800.0
OF_THE_TABLE = [each.name for each in COLUMNS if each.name not in ("topic", "message_id")]
TEN = [
    "value", "publish_time", "key", "entry_id", "batch_index", "sequence_id", "producer_name",
    "event_time", "properties", "ledger_id",
]  # fmt: skip
PROJECTION = ("key", "event_time")
SELECTIONS = {
    "all columns": OF_THE_TABLE,
    "10 columns": TEN,
    **{
        f"2: {', '.join(two)}": list(two)
        for two in (PROJECTION, ("value", "publish_time"), ("event_time", "sequence_id"))
    },
}


def table_of(admin_url: str, rows: int) -> str:
    """The topic's table, once all messages are in it."""
    url = f"{admin_url}/admin/v2/persistent/public/default/{TOPIC}/tableFiles"
    deadline = time.monotonic() + SEALED_WITHIN_SECONDS
    while True:
        with urllib.request.urlopen(url) as response:
            answer: dict[str, Any] = json.load(response)
        sealed = sum(
            file["rows"]
            for partition in answer["partitions"]
            for ledger in partition["ledgers"]
            for file in ledger["files"]
        )
        if sealed == rows:
            return str(answer["directories"][0])
        if time.monotonic() > deadline:
            raise RuntimeError(f"{sealed} messages of {rows} are sealed")
        time.sleep(1.0)


def run(load: Callable[[], DataFrame]) -> tuple[float, float]:
    """Seconds of one read, and of processors that it took."""
    began, spent = time.perf_counter(), Spent()
    load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began, spent.seconds()


def measure(arguments: argparse.Namespace, home: Path) -> list[Goal]:
    """Print all rates."""
    os.environ.update(SETTINGS)
    with StandaloneProcess(home / "data") as broker:
        fill(broker.service_url, TOPIC, arguments.rows)
        began = time.perf_counter()
        table = table_of(broker.admin_url, arguments.rows)
        print(f"sealed {time.perf_counter() - began:,.0f} s after the last message", flush=True)
        spark = local_session("spark-sealed", arguments.cores)
        where = {"serviceUrl": broker.service_url, "adminUrl": broker.admin_url, "topic": TOPIC}
        goals = compare(spark, where, table, arguments)
        spark.stop()
    return goals


def compare(
    spark: SparkSession, where: dict[str, str], table: str, arguments: argparse.Namespace
) -> list[Goal]:
    """The same columns both ways, in turns."""
    goals, rates = [], {}
    rows = arguments.rows
    for name, columns in SELECTIONS.items():

        def ours(columns: list[str] = columns) -> DataFrame:
            return spark.read.format("pulsark").options(**where, columns=",".join(columns)).load()

        def delta(columns: list[str] = columns) -> DataFrame:
            return spark.read.format("delta").load(table).select(*columns)

        pairs = [(run(ours), run(delta)) for _ in range(arguments.runs + 1)][1:]
        (mine, cpu), (other, other_cpu) = (
            [statistics.median(each) for each in zip(*side, strict=True)]
            for side in zip(*pairs, strict=True)
        )
        rates[name] = rows / mine
        print(
            f"{name:27}{rows / mine:>11,.0f} rows/s {cpu / rows * 1e6:>5.2f} us   "
            f"delta {rows / other:>11,.0f} {other_cpu / rows * 1e6:>5.2f} us",
            flush=True,
        )
        goals.append(Goal(f"of Delta, {name}", other / mine, "at least", OF_DELTA))
    projected = rates[f"2: {', '.join(PROJECTION)}"] / rates["10 columns"]
    goals.append(Goal(f"{', '.join(PROJECTION)} / 10 columns", projected, "at least", PROJECTED))
    return goals


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-sealed-") as home:
        goals = measure(chosen, Path(home))
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
