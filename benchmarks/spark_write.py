"""How fast rows become messages: ``python -m benchmarks.spark_write``.

Rows with a key and a value of 1 KiB, which lie in memory as those of the clients do, are written
with ``df.write`` to a topic with several partitions; messages of that size are published to others
by the official Python and Go clients with batching, on the same broker. What is measured ends when
all are durable and visible. ``--check`` exits 1 unless ``df.write`` has at least 5 times the rows/s
of the Python client and 1.5 times those of the Go client.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar

import pulsark
from benchmarks.goals import Goal, add_check, exit_code
from benchmarks.maven import CACHE
from examples.flights.process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_BYTES = 1024
KEYS = 100_000
HEX_OF_512_BITS = 128
GO_SOURCE = Path(__file__).parent / "load" / "go"
DRIVER_MEMORY = "10g"
"""Five million rows fit into what Spark takes of it for them."""

OVER_PYTHON, OVER_GO = 5.0, 1.5


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows in memory, whose values compress by half: to make them takes longer than to write."""
    pieces = [f"sha2(concat(id, '-{i}'), 512)" for i in range(VALUE_BYTES // HEX_OF_512_BITS)]
    made = spark.range(count).selectExpr(
        f"concat('key-', id % {KEYS}) as key", f"concat({', '.join(pieces)}) as value"
    )
    made.cache().count()
    return made


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


def go_program() -> str | None:
    """The Go client's program, built if there is a Go."""
    go = shutil.which("go")
    if go is None:
        print("there is no go command: the Go client is left out", file=sys.stderr)
        return None
    program = CACHE / "go" / "publish"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([go, "build", "-o", str(program), "."], cwd=GO_SOURCE, check=True)
    return str(program)


def publish_with_go(program: str, service_url: str, topic: str, count: int) -> float:
    """Seconds that the Go client takes."""
    numbers = [str(count), str(VALUE_BYTES), str(min(count, KEYS))]
    done = subprocess.run(
        [program, service_url, topic, *numbers], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def measure(arguments: argparse.Namespace, home: Path) -> list[Goal]:
    """Print all rates; the ratios of their medians."""
    program = go_program()
    with StandaloneProcess(home / "data") as broker:
        options = {"serviceUrl": broker.service_url, "adminUrl": broker.admin_url}
        spark = pulsark.session(
            "spark-write",
            master=f"local[{arguments.cores}]",
            config={"spark.ui.enabled": "false", "spark.driver.memory": DRIVER_MEMORY},
        )
        spark.sparkContext.setLogLevel("ERROR")
        frame = rows(spark, arguments.rows)
        write(frame.limit(1000), options, "warm", arguments.partitions)
        rates: dict[str, list[float]] = {"df.write": [], "Python client": [], "Go client": []}
        for run in range(arguments.runs):
            seconds = write(frame, options, f"spark-{run}", arguments.partitions)
            rates["df.write"].append(arguments.rows / seconds)
            for name in ("python", "go") if program else ("python",):
                topic, count = f"{name}-{run}", arguments.messages
                write(frame.limit(1), options, topic, arguments.partitions)  # makes the partitions
                if name == "go" and program:
                    rate = count / publish_with_go(program, broker.service_url, topic, count)
                    rates["Go client"].append(rate)
                else:
                    rate = count / publish(broker.service_url, topic, count)
                    rates["Python client"].append(rate)
        spark.stop()
    for name, found in rates.items():
        if found:
            middle = statistics.median(found)
            print(f"{name:14} {middle:>10,.0f} rows/s ({min(found):,.0f} to {max(found):,.0f})")
    middle = statistics.median(rates["df.write"])
    return [
        Goal(f"df.write / {name}", middle / statistics.median(rates[name]), "at least", needed)
        for name, needed in (("Python client", OVER_PYTHON), ("Go client", OVER_GO))
        if rates[name]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--messages", type=int, default=500_000, help="for each client")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-write-") as home:
        goals = measure(chosen, Path(home))
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
