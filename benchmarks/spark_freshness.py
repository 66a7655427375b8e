"""How soon messages are in a Delta table by Spark: ``python -m benchmarks.spark_freshness``.

Pulsark: ``readStream.format("pulsark")`` into ``writeStream.format("delta")``. Apache Pulsar 4.0.7
has no source for this Spark, so its messages come through its own client in a Spark job: the
official Python client receives what is there, Spark appends it to the table, the messages are
acknowledged, and the next round begins at once. Both write with one session and its settings; the
appends carry a transaction id, as a job needs that is not to write a batch twice. The age of a
message is the time from when it was due until the commit that shows it was in the table's log; the
warm-up does not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.brokers import Broker, Pulsar, Pulsark, free_port
from benchmarks.goals import Goal, add_check, exit_code
from benchmarks.load import LoadClient
from benchmarks.sealing import commits
from benchmarks.spark_read import VALUE_BYTES, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_PULSAR = 0.5
START_SECONDS = 180.0
WARM_SECONDS = 15.0
RECEIVED_MAX = 100_000
"""Messages of a round, in the client's queue and out of it."""
WAIT_MS = 10
DRAIN_SECONDS = 120.0
SCHEMA = pa.schema(
    [("key", pa.string()), ("event_time", pa.timestamp("us", "UTC")), ("value", pa.binary())]
)


class Place(NamedTuple):
    """What one measurement reads and writes."""

    broker: Broker
    topic: str
    table: Path
    checkpoint: Path


def with_pulsark(spark: SparkSession, at: Place) -> Callable[[], None]:
    """Start a stream; how to stop it."""
    assert isinstance(at.broker, WithWeb)
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


def with_client(spark: SparkSession, at: Place) -> Callable[[], None]:
    """Start a thread that receives and appends; how to stop it."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(at.broker.url, logger=logger)
    consumer = client.subscribe(
        at.topic,
        "spark",
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=RECEIVED_MAX,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(RECEIVED_MAX, -1, WAIT_MS),
    )
    ended = threading.Event()
    failed: list[BaseException] = []

    def job() -> None:
        version = 0
        try:
            while not ended.is_set():
                messages = consumer.batch_receive()
                if not messages:
                    continue
                columns = [
                    pa.array([each.partition_key() for each in messages], pa.string()),
                    pa.array([each.event_timestamp() for each in messages], pa.int64())
                    .cast(pa.timestamp("ms", "UTC"))
                    .cast(SCHEMA.field(1).type),
                    pa.array([each.data() for each in messages], pa.binary()),
                ]
                (
                    spark.createDataFrame(pa.Table.from_arrays(columns, schema=SCHEMA))
                    .write.format("delta")
                    .mode("append")
                    .option("txnAppId", at.topic)
                    .option("txnVersion", version)
                    .save(str(at.table))
                )
                version += 1
                consumer.acknowledge_cumulative(messages[-1])
        except BaseException as error:  # the thread's; told when it is stopped
            failed.append(error)

    thread = threading.Thread(target=job)
    thread.start()

    def stop() -> None:
        ended.set()
        thread.join()
        client.close()
        if failed:
            raise failed[0]

    return stop


class WithWeb(Pulsark):
    """Pulsark, whose admin API has a port that is known."""

    @property
    def admin_url(self) -> str:
        """``http://host:port``."""
        return f"http://127.0.0.1:{self.web_port}"

    def __init__(self, home: Path, web_port: int) -> None:
        super().__init__(home)
        self.web_port = web_port

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("--web-port") + 1] = str(self.web_port)
        return command


def ages_of(table: Path, since: float) -> list[float]:
    """Seconds from when each message was due until its commit, of those due since a time."""
    found = []
    for there, _, files in commits(table / "_delta_log"):
        for file in files:
            times = pq.ParquetFile(file).read(columns=["event_time"]).column(0)
            in_us = times.cast(SCHEMA.field(1).type).cast(pa.int64())  # Spark's are INT96
            seconds = [each / 1e6 for each in in_us.to_pylist()]
            found += [there - due for due in seconds if due >= since]
    return found


def measure(
    spark: SparkSession, load: LoadClient, at: Place, rate: float, seconds: float
) -> list[float]:
    """The ages of all messages of one run."""
    begin = with_pulsark if isinstance(at.broker, Pulsark) else with_client
    steady = {"url": at.broker.url, "topic": at.topic, "size": VALUE_BYTES, "batching": True}
    load.call("steady", rate=1, seconds=1, **steady)
    stop = begin(spark, at)
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
    brokers: list[Broker] = [WithWeb(home / "pulsark", free_port()), Pulsar(home / "pulsar")]
    load = LoadClient()
    spark = local_session("spark-freshness", arguments.cores)
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
                    ages = measure(spark, load, at, rate, arguments.seconds)
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
