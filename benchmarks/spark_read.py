"""How fast Spark reads a topic from the journal tail: ``python -m benchmarks.spark_read``.

Publishes messages of 100 bytes with the official client, then reads them with ``spark.read``
into the noop sink, with all columns and with two of them. The first read of a JVM is shown but
does not count. ``--check RATE`` exits 1 if the median with all columns is below it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar

import pulsark
from pulsark.demo.process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUE_BYTES = 100
SELECTIONS = {
    "all columns": "",
    "value, publish_time": "value,publish_time",
}


def publish(service_url: str, topic: str, messages: int, properties: int) -> None:
    """Fill a topic with batches of up to 1000 messages."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, logger=logger)
    producer = client.create_producer(
        topic,
        block_if_queue_full=True,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=100,
    )
    value = bytes(VALUE_BYTES)
    extra = {f"property-{i}": f"value-{i}" for i in range(properties)} or None
    failed: list[Any] = []

    def sent(result: pulsar.Result, _: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for _ in range(messages):
        producer.send_async(value, sent, properties=extra)
    producer.flush()
    client.close()
    if failed:
        raise RuntimeError(f"{len(failed)} sends failed: {failed[0]}")


def read(spark: SparkSession, options: dict[str, str], columns: str) -> float:
    """Seconds that one batch read takes."""
    reader = spark.read.format("pulsark").options(**options)
    if columns:
        reader = reader.option("columns", columns)
    began = time.perf_counter()
    reader.load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace, home: Path) -> float:
    """Print all rates; returns the median with all columns, in rows a second."""
    median = 0.0
    with StandaloneProcess(home / "data") as broker:
        topic = "spark-read"
        began = time.perf_counter()
        publish(broker.service_url, topic, arguments.messages, arguments.properties)
        seconds = time.perf_counter() - began
        print(f"published {arguments.messages / seconds:,.0f} messages/s")
        options = {
            "serviceUrl": broker.service_url,
            "adminUrl": broker.admin_url,
            "topic": topic,
        }
        spark = pulsark.session(
            "spark-read",
            master=f"local[{arguments.cores}]",
            config={"spark.ui.enabled": "false"},
        )
        spark.sparkContext.setLogLevel("ERROR")
        count = spark.read.format("pulsark").options(**options, columns="entry_id").load().count()
        if count != arguments.messages:
            raise RuntimeError(f"{count} rows of {arguments.messages}")
        for name, columns in SELECTIONS.items():
            first = arguments.messages / read(spark, options, columns)
            rates = [
                arguments.messages / read(spark, options, columns) for _ in range(arguments.runs)
            ]
            middle = statistics.median(rates)
            median = median or middle
            print(
                f"{name:20} {middle:>10,.0f} rows/s  "
                f"({min(rates):,.0f} to {max(rates):,.0f}, first {first:,.0f})"
            )
        spark.stop()
    return median


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--properties", type=int, default=0, help="properties of each message")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", type=float, default=0.0, metavar="RATE")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-read-") as home:
        rate = measure(chosen, Path(home))
    return 0 if rate >= chosen.check else 1


if __name__ == "__main__":
    sys.exit(main())
