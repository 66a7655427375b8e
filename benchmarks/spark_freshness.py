"""How soon messages are in a Delta table by Spark: ``python -m benchmarks.spark_freshness``.

Pulsark: ``readStream.format("pulsark")`` into ``writeStream.format("delta")``, in the session that
``pulsark.session()`` makes. Apache Pulsar 4.0.7: a Spark job with its own client, in a session as
Spark and Delta make it (``peer_job``). The age of a message is the time from when it was due until
the commit that shows it was in the table's log; the warm-up does not count. The job that is not
measured has nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.brokers import Broker, Pulsar, Pulsark
from benchmarks.goals import Goal, add_check, exit_code
from benchmarks.load import LoadClient
from benchmarks.sealing import commits
from benchmarks.spark_read import VALUE_BYTES, local_session
from pulsark.datasource.session import delta_jars, ivy_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_PULSAR = 0.5
START_SECONDS = 180.0
WARM_SECONDS = 15.0
DRAIN_SECONDS = 120.0
TIME = pa.timestamp("us", "UTC")


class Place(NamedTuple):
    """What one measurement reads and writes."""

    broker: Broker
    topic: str
    table: Path
    checkpoint: Path


Begin = Callable[[Place], Callable[[], None]]
"""Brings a topic into a table from now on; returns what stops it."""


def with_pulsark(spark: SparkSession, at: Place) -> Callable[[], None]:
    """Start a stream; how to stop it."""
    assert isinstance(at.broker, Pulsark)
    query = (
        spark.readStream.format("pulsark")
        .options(
            serviceUrl=at.broker.url,
            adminUrl=at.broker.admin_url,
            topic=at.topic,
            columns="key,event_time,value",
            startingOffsets="earliest",
            subscription="spark",
        )
        .load()
        .writeStream.format("delta")
        .option("checkpointLocation", str(at.checkpoint))
        .start(str(at.table))
    )

    def stop() -> None:
        error = query.exception()
        query.stop()
        if error is not None:
            raise error

    return stop


class PeerJob:
    """The process of ``peer_job``."""

    def __init__(self, cores: int) -> None:
        jars = ",".join(str(ivy_dir() / "jars" / name) for name in delta_jars())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer_job", str(cores), jars],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def begin(self, at: Place) -> Callable[[], None]:
        """Bring a topic into a table; how to stop it."""
        self._tell({"url": at.broker.url, "topic": at.topic, "table": str(at.table)})
        return lambda: self._tell({})

    def _tell(self, wanted: dict[str, str]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line or json.loads(line)["error"]:
            raise RuntimeError(f"the job of the peer has failed: {line}")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def ages_of(table: Path, since: float) -> list[float]:
    """Seconds from when each message was due until its commit, of those due since a time."""
    found = []
    for there, _, files in commits(table / "_delta_log"):
        for file in files:
            times = pq.ParquetFile(file).read(columns=["event_time"]).column(0)
            in_us = times.cast(TIME).cast(pa.int64())  # Spark's are INT96
            seconds = [each / 1e6 for each in in_us.to_pylist()]
            found += [there - due for due in seconds if due >= since]
    return found


def measure(
    begin: Begin,
    load: LoadClient,
    at: Place,
    rate: float,
    seconds: float,
) -> list[float]:
    """The ages of all messages of one run."""
    steady = {"url": at.broker.url, "topic": at.topic, "size": VALUE_BYTES, "batching": True}
    load.call("steady", rate=1, seconds=1, **steady)
    stop = begin(at)
    deadline = time.monotonic() + START_SECONDS
    while not (at.table / "_delta_log" / f"{0:020d}.json").exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{at.broker.name}: there is no table")
        time.sleep(0.1)
    load.call("steady", rate=rate, seconds=WARM_SECONDS, **steady)
    since = time.time()
    answer = load.call("steady", rate=rate, seconds=seconds, **steady)
    wanted = int(rate * seconds)
    deadline = time.monotonic() + DRAIN_SECONDS
    while len(ages := ages_of(at.table, since)) < wanted and time.monotonic() < deadline:
        time.sleep(1.0)
    stop()
    if len(ages) < wanted:
        raise RuntimeError(f"{len(ages)} of {wanted} messages are in the table")
    published = answer["messages"] / answer["seconds"]
    found = len(commits(at.table / "_delta_log"))
    print(
        f"{at.broker.name:8} {published:>8,.0f} messages/s: p50 {statistics.median(ages):.2f} s, "
        f"p95 {statistics.quantiles(ages, n=20)[18]:.2f} s, max {max(ages):.2f} s; {found} commits",
        flush=True,
    )
    return ages


def compare(arguments: argparse.Namespace, home: Path) -> list[Goal]:
    """Both in turns, at each rate."""
    brokers: list[Broker] = [Pulsark(home / "pulsark"), Pulsar(home / "pulsar")]
    load = LoadClient()
    spark = local_session("spark-freshness", arguments.cores)
    peer = PeerJob(arguments.cores)
    begins: dict[str, Begin] = {
        brokers[0].name: partial(with_pulsark, spark),
        brokers[1].name: peer.begin,
    }
    goals = []
    try:
        for broker in brokers:
            broker.prepare()
            broker.start()
            topic = "persistent://public/default/first"
            load.call("first", url=broker.url, topic=topic, seconds=START_SECONDS)
        for rate in arguments.rates:
            found: dict[str, list[float]] = {broker.name: [] for broker in brokers}
            for number in range(arguments.rounds + 1):
                for broker in brokers if number % 2 == 0 else brokers[::-1]:
                    name = f"{broker.name.lower()}-{rate:.0f}-{number}"
                    topic = f"persistent://public/default/{name}"
                    at = Place(broker, topic, home / f"{name}.table", home / f"{name}.checkpoint")
                    ages = measure(begins[broker.name], load, at, rate, arguments.seconds)
                    if number:  # the first round warms the JVM up
                        found[broker.name].append(statistics.median(ages))
            ours, other = (statistics.median(found[broker.name]) for broker in brokers)
            goals.append(
                Goal(
                    f"freshness p50 at {rate:,.0f}/s, of Pulsar", ours / other, "at most", OF_PULSAR
                )
            )
    finally:
        spark.stop()
        peer.close()
        load.close()
        for broker in brokers:
            broker.stop()
    return goals


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[1000.0], help="messages a second"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-freshness-") as home:
        goals = compare(chosen, Path(home))
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
