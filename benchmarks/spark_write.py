"""How fast rows become messages: ``python -m benchmarks.spark_write``.

Rows with a key and a value of 1 KiB, which are made before and lie in a Parquet file, are written
with ``df.write`` to a topic with several partitions, and messages of that size are published by
the official Python client with batching to another one, on the same broker. What is measured ends
when all are durable and visible. ``--check RATIO`` exits 1 if ``df.write`` is not that much faster.
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
    from pyspark.sql import DataFrame, SparkSession

VALUE_BYTES = 1024
KEYS = 100_000
HEX_OF_512_BITS = 128


def rows(spark: SparkSession, place: Path, count: int) -> DataFrame:
    """Rows whose values compress by half, from a file: to make them takes longer than to write."""
    pieces = [f"sha2(concat(id, '-{i}'), 512)" for i in range(VALUE_BYTES // HEX_OF_512_BITS)]
    made = spark.range(count).selectExpr(
        f"concat('key-', id % {KEYS}) as key", f"concat({', '.join(pieces)}) as value"
    )
    made.write.mode("overwrite").parquet(str(place))
    return spark.read.parquet(str(place))


def write(frame: DataFrame, options: dict[str, str], topic: str, partitions: int) -> float:
    """Seconds that a write takes."""
    began = time.perf_counter()
    (
        frame.write.format("pulsark")
        .options(**options, topic=topic, createTopic="true", numPartitions=partitions)
        .mode("append")
        .save()
    )
    return time.perf_counter() - began


def publish(service_url: str, topic: str, count: int) -> float:
    """Seconds that the Python client takes."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        block_if_queue_full=True,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=10,
        max_pending_messages=10_000,
    )
    value = b"0123456789abcdef" * (VALUE_BYTES // 16)
    keys = [f"key-{i}" for i in range(min(count, KEYS))]
    failed: list[Any] = []

    def sent(result: pulsar.Result, _: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    began = time.perf_counter()
    for i in range(count):
        producer.send_async(value, sent, partition_key=keys[i % len(keys)])
    producer.flush()
    seconds = time.perf_counter() - began
    client.close()
    if failed:
        raise RuntimeError(f"{len(failed)} sends failed: {failed[0]}")
    return seconds


def measure(arguments: argparse.Namespace, home: Path) -> float:
    """Print all rates; returns the ratio of the medians."""
    with StandaloneProcess(home / "data") as broker:
        options = {"serviceUrl": broker.service_url, "adminUrl": broker.admin_url}
        spark = pulsark.session(
            "spark-write",
            master=f"local[{arguments.cores}]",
            config={"spark.ui.enabled": "false"},
        )
        spark.sparkContext.setLogLevel("ERROR")
        frame = rows(spark, home / "rows", arguments.rows)
        write(frame.limit(1000), options, "warm", arguments.partitions)
        written, published = [], []
        for run in range(arguments.runs):
            seconds = write(frame, options, f"spark-{run}", arguments.partitions)
            written.append(arguments.rows / seconds)
            topic = f"client-{run}"
            write(frame.limit(1), options, topic, arguments.partitions)  # makes the partitions
            published.append(
                arguments.messages / publish(broker.service_url, topic, arguments.messages)
            )
        spark.stop()
    for name, rates in (("df.write", written), ("Python client", published)):
        print(
            f"{name:14} {statistics.median(rates):>10,.0f} rows/s "
            f"({min(rates):,.0f} to {max(rates):,.0f})"
        )
    ratio = statistics.median(written) / statistics.median(published)
    print(f"df.write / Python client: {ratio:.2f}")
    return ratio


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--messages", type=int, default=500_000, help="for the Python client")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--check", type=float, default=0.0, metavar="RATIO")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-write-") as home:
        ratio = measure(chosen, Path(home))
    return 0 if ratio >= chosen.check else 1


if __name__ == "__main__":
    sys.exit(main())
