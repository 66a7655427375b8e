"""How fast Spark reads a sealed topic, beside its own Delta: ``python -m benchmarks.spark_sealed``.

Publishes messages of 100 bytes with the official client, waits until all are in the topic's table,
and reads them into the noop sink: as a topic with ``format("pulsark")`` and as a table with
``format("delta")``, with the same columns, in turns. The first read of each does not count.
``--check RATIO`` exits 1 if the median of ours is below so much of Delta's.
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

import pulsark
from benchmarks.spark_read import publish
from pulsark.datasource.columns import COLUMNS
from pulsark.demo.process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "spark-sealed"
SETTINGS = {"PULSARK_sealEnabled": "true", "PULSARK_sealFreshnessSeconds": "2"}
"""The broker's, by its environment."""
SEALED_WITHIN_SECONDS = 1800.0
OF_THE_TABLE = [each.name for each in COLUMNS if each.name not in ("topic", "message_id")]
TEN = [
    "value", "publish_time", "key", "entry_id", "batch_index", "sequence_id", "producer_name",
    "event_time", "properties", "ledger_id",
]  # fmt: skip
SELECTIONS = {"all columns": OF_THE_TABLE, "10 columns": TEN, "2 columns": TEN[:2]}


def table_of(admin_url: str, messages: int) -> str:
    """The topic's table, once all messages are in it."""
    url = f"{admin_url}/admin/v2/persistent/public/default/{TOPIC}/tableFiles"
    deadline = time.monotonic() + SEALED_WITHIN_SECONDS
    while True:
        with urllib.request.urlopen(url) as response:
            answer: dict[str, Any] = json.load(response)
        rows = sum(
            file["rows"]
            for partition in answer["partitions"]
            for ledger in partition["ledgers"]
            for file in ledger["files"]
        )
        if rows == messages:
            return str(answer["directories"][0])
        if time.monotonic() > deadline:
            raise RuntimeError(f"{rows} messages of {messages} are sealed")
        time.sleep(1.0)


def rate(messages: int, load: Callable[[], DataFrame]) -> float:
    """Rows a second of one read."""
    began = time.perf_counter()
    load().write.format("noop").mode("overwrite").save()
    return messages / (time.perf_counter() - began)


def measure(arguments: argparse.Namespace, home: Path) -> float:
    """Print all rates; the smallest ratio of ours to Delta's."""
    os.environ.update(SETTINGS)
    with StandaloneProcess(home / "data") as broker:
        publish(broker.service_url, TOPIC, arguments.messages, arguments.properties)
        began = time.perf_counter()
        table = table_of(broker.admin_url, arguments.messages)
        print(f"sealed {time.perf_counter() - began:,.0f} s after the last message")
        spark = pulsark.session(
            "spark-sealed",
            master=f"local[{arguments.cores}]",
            config={"spark.ui.enabled": "false"},
        )
        spark.sparkContext.setLogLevel("ERROR")
        where = {"serviceUrl": broker.service_url, "adminUrl": broker.admin_url, "topic": TOPIC}
        found = compare(spark, where, table, arguments)
        spark.stop()
    return found


def compare(
    spark: SparkSession, where: dict[str, str], table: str, arguments: argparse.Namespace
) -> float:
    """The same columns both ways, in turns."""
    ratios, ours_by_name = [], {}
    for name, columns in SELECTIONS.items():

        def ours(columns: list[str] = columns) -> DataFrame:
            return spark.read.format("pulsark").options(**where, columns=",".join(columns)).load()

        def delta(columns: list[str] = columns) -> DataFrame:
            return spark.read.format("delta").load(table).select(*columns)

        pairs = [
            (rate(arguments.messages, ours), rate(arguments.messages, delta))
            for _ in range(arguments.runs + 1)
        ][1:]
        mine, other = (statistics.median(each) for each in zip(*pairs, strict=True))
        ours_by_name[name] = mine
        ratios.append(mine / other)
        print(f"{name:12} {mine:>12,.0f} rows/s   delta {other:>12,.0f}   ratio {mine / other:.2f}")
    projected = ours_by_name["2 columns"] / ours_by_name["10 columns"]
    print(f"2 of 10 columns: {projected:.1f} times as fast")
    return min(ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--properties", type=int, default=0, help="properties of each message")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--check", type=float, default=0.0, metavar="RATIO")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-sealed-") as home:
        ratio = measure(chosen, Path(home))
    return 0 if ratio >= chosen.check else 1


if __name__ == "__main__":
    sys.exit(main())
