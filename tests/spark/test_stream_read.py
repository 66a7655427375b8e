"""``spark.readStream``: each message once, over restarts, with the subscription behind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Double, Integer, JsonSchema, Record, String
from pyspark.errors import PySparkException

from tests.support.python_client import connect
from tests.support.spark_streams import (
    WAIT_SECONDS,
    admin,
    backlog,
    eventually,
    numbers,
    publish,
    run_available,
    stream,
)
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = Path(__file__).with_name("stream_driver.py")


@pytest.mark.feature("F92")
def test_a_restarted_query_goes_on_where_it_stopped(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    admin(broker, "PUT", f"{topic}/partitions", 3)
    frame = stream(spark, reading, subscription="job", maxBytesPerTrigger="2k")
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    publish(client, topic, range(100))
    assert run_available(frame, sink, checkpoint) > 1
    assert numbers(spark, sink) == list(range(100))
    for partition in range(3):
        assert backlog(broker, f"{topic}-partition-{partition}", "job") == 0
    publish(client, topic, range(100, 150))
    run_available(frame, sink, checkpoint)
    run_available(frame, sink, checkpoint)
    assert numbers(spark, sink) == list(range(150))


def test_a_running_query_follows_the_topic_and_more_partitions(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    admin(broker, "PUT", f"{topic}/partitions", 1)
    frame = stream(spark, reading, startingOffsets="latest", subscription="job")
    publish(client, topic, range(10))
    query = (
        frame.selectExpr("partition", "cast(value as string) v")
        .writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        eventually(lambda: _subscribed(broker, f"{topic}-partition-0"), "the query runs")
        publish(client, topic, range(10, 20))
        eventually(lambda: spark.table("followed").count() == 10, "ten rows")
        admin(broker, "POST", f"{topic}/partitions", 2)
        publish(client, f"{topic}-partition-1", range(20, 30))
        eventually(lambda: spark.table("followed").count() == 20, "twenty rows")
        rows = spark.table("followed").collect()
        assert {int(row.v) for row in rows if row.partition == 0} == set(range(10, 20))
        assert {int(row.v) for row in rows if row.partition == 1} == set(range(20, 30))
        for partition in (0, 1):
            name = f"{topic}-partition-{partition}"
            eventually(lambda name=name: backlog(broker, name, "job") == 0, "no backlog")  # type: ignore[misc]
    finally:
        query.stop()


def test_a_query_outlives_the_broker(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as broker:
        reading = {
            "serviceUrl": broker.service_url,
            "adminUrl": broker.web_url,
            "topic": topic,
            "subscription": "job",
        }
        client = connect(broker)
        publish(client, topic, range(500))
        query = (
            stream(spark, reading)
            .selectExpr("cast(cast(value as string) as int) n")
            .writeStream.format("memory")
            .queryName("outlived")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            for end in (1000, 1500):
                broker.kill()
                broker.start()
                publish(client, topic, range(end - 500, end))
                eventually(lambda end=end: spark.table("outlived").count() >= end, "all rows")  # type: ignore[misc]
            assert sorted(row.n for row in spark.table("outlived").collect()) == list(range(1500))
            eventually(lambda: backlog(broker, topic, "job") == 0, "no backlog")
        finally:
            query.stop()
            client.close()


@pytest.mark.feature("F92")
def test_micro_batches_of_limited_rows(
    spark: SparkSession,
    client: pulsar.Client,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    publish(client, topic, range(250))  # in batches of the producer that are larger
    frame = stream(spark, reading, maxRowsPerTrigger="100", minRowsPerTrigger="100")
    sink = tmp_path / "sink"
    query = (
        frame.selectExpr("cast(cast(value as string) as int) n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(sink))
    )
    assert query.awaitTermination(int(WAIT_SECONDS))
    counts = [progress.numInputRows for progress in query.recentProgress]
    assert [count for count in counts if count] == [100, 100, 50]
    assert numbers(spark, sink) == list(range(250))


def test_a_second_query_with_the_subscription_fails_and_the_first_goes_on(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    publish(client, topic, range(10))
    frame = stream(spark, reading, subscription="job")
    first = (
        frame.writeStream.format("memory")
        .queryName("first_of_two")
        .option("checkpointLocation", str(tmp_path / "first"))
        .start()
    )
    try:
        eventually(lambda: spark.table("first_of_two").count() == 10, "ten rows")
        second = frame.writeStream.format("noop")
        second = second.option("checkpointLocation", str(tmp_path / "second"))
        with pytest.raises(PySparkException, match="is in use by another Spark query, at "):
            second.start().awaitTermination(int(WAIT_SECONDS))
        publish(client, topic, range(10, 20))
        eventually(lambda: spark.table("first_of_two").count() == 20, "twenty rows")
        eventually(lambda: backlog(broker, topic, "job") == 0, "no backlog")
    finally:
        first.stop()
    third = frame.writeStream.format("noop").trigger(availableNow=True)
    third = third.option("checkpointLocation", str(tmp_path / "third"))
    assert third.start().awaitTermination(int(WAIT_SECONDS))


def test_a_stopped_query_leaves_no_backlog(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    publish(client, topic, range(10))
    writer = stream(spark, reading, subscription="job").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    query.stop()
    eventually(lambda: backlog(broker, topic, "job") == 0, "no backlog")


def test_a_batch_is_acknowledged_though_none_is_planned_after_it(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    publish(client, topic, range(10))
    writer = stream(spark, reading, subscription="job").writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 hour")
    query = writer.start()
    try:
        eventually(lambda: _subscribed(broker, topic), "the query runs")
        eventually(lambda: backlog(broker, topic, "job") == 0, "no backlog")
    finally:
        query.stop()


def test_a_checkpoint_of_another_topic_is_refused(
    spark: SparkSession,
    client: pulsar.Client,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    publish(client, topic, range(10))
    publish(client, f"{topic}-other", range(10))
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    run_available(stream(spark, reading), sink, checkpoint)
    with pytest.raises(PySparkException, match=f"is of .*{topic}, which this query does not read"):
        run_available(stream(spark, {**reading, "topic": f"{topic}-other"}), sink, checkpoint)


def _subscribed(broker: Standalone, topic: str) -> bool:
    return "job" in admin(broker, "GET", f"{topic}/subscriptions")


def test_wrong_options_for_a_stream(spark: SparkSession, reading: dict[str, Any]) -> None:
    frame = stream(spark, reading, endingOffsets="latest")
    query = frame.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match=r"'endingOffsets' is for spark.read, not"):
        query.awaitTermination()


class Publisher:
    """Publishes ``producer:sequence`` in the background until it is told to end."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producers = [
            client.create_producer(topic, producer_name=f"p{i}", batching_enabled=i > 0)
            for i in range(3)
        ]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.published = 0

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        sequence = 0
        while not self._end.wait(0.02):
            for _ in range(10):
                for i, producer in enumerate(self._producers):
                    producer.send_async(b"p%d:%d" % (i, sequence), lambda result, _: None)
                sequence += 1
            for producer in self._producers:
                producer.flush()
            self.published = sequence


class Driver:
    """The Spark application as a process group that can be killed at a line of its output."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._log = log

    def wait_for(self, word: str, count: int = 1) -> int:
        """Wait for the n-th line that starts with a word; the number behind it, or 0."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            first, *rest = line.split()
            if first == word:
                count -= 1
                if count == 0:
                    return int(rest[0]) if rest else 0
        raise AssertionError(f"the driver ended:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL to Python and the JVM together."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def start_driver(broker: Standalone, topic: str, tmp_path: Path) -> Iterator[Callable[[], Driver]]:
    started: list[Driver] = []

    def start() -> Driver:
        sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")
        urls = [broker.service_url, broker.web_url]
        driver = Driver([*urls, topic, "job", sink, checkpoint], tmp_path / "driver.log")
        started.append(driver)
        return driver

    yield start
    for driver in started:
        if driver._process.poll() is None:
            driver.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # of which up to eleven starts of a JVM take most
@pytest.mark.parametrize(
    "moments",
    [
        # test_kill_chain kills drivers in make test.
        pytest.param([("wrote", 2)], id="one", marks=pytest.mark.chaos),
        # Planned, half written, written but not committed; both in a first and in a later batch.
        pytest.param(
            [("writing", 2), ("wrote", 2), ("started", 1), ("wrote", 1), ("writing", 1)],
            id="five",
            marks=pytest.mark.chaos,
        ),
    ],
)
def test_a_sink_has_everything_once_though_the_query_was_killed(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    start_driver: Callable[[], Driver],
    tmp_path: Path,
    moments: list[tuple[str, int]],
) -> None:
    admin(broker, "PUT", f"{topic}/partitions", 4)
    with Publisher(client, topic) as publisher:
        for word, count in moments:
            driver = start_driver()
            driver.wait_for(word, count)
            driver.kill()
        driver = start_driver()
        driver.wait_for("wrote", 2)
    wanted = {(f"p{i}", seq) for i in range(3) for seq in range(publisher.published)}
    assert len(wanted) > 200 * len(moments)
    sink = str(tmp_path / "sink")

    def count() -> int:
        return int(spark.read.format("delta").load(sink).count())

    eventually(lambda: count() >= len(wanted), "every message is in the sink")
    for i in range(4):
        name = f"{topic}-partition-{i}"
        eventually(lambda name=name: backlog(broker, name, "job") == 0, "no backlog")  # type: ignore[misc]
    driver.kill()
    rows = spark.read.format("delta").load(sink).collect()
    assert len(rows) == len(wanted)
    assert {(row.producer, row.seq) for row in rows} == wanted
    assert len({row.message_id for row in rows}) == len(rows)


def order(**fields: Any) -> type[Record]:
    """A class of records of one name."""
    found: type[Record] = type(Record)("Order", (Record,), {"id": Integer(), **fields})
    return found


First = order(item=String())
Second = order(item=String(), price=Double(required_default=True))


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_fields_of_a_schema_that_changes_under_the_query(
    spark: SparkSession,
    client: pulsar.Client,
    reading: dict[str, Any],
    tmp_path: Path,
    kind: Any,
) -> None:
    topic = f"fields-{kind.__name__}"
    old = client.create_producer(topic, schema=kind(First))
    old.send(First(id=1, item="tea"), partition_key="k")
    given = {**reading, "topic": topic, "columns": "id,item,__key", "valueFormat": "auto"}
    query = (
        stream(spark, given, columns=given["columns"])
        .writeStream.format("memory")
        .queryName(f"fields_{kind.__name__}")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        rows = spark.table(f"fields_{kind.__name__}")
        eventually(lambda: rows.count() == 1, "the first row")
        new = client.create_producer(topic, schema=kind(Second))
        new.send(Second(id=2, item="milk", price=1.5))
        eventually(lambda: rows.count() == 2, "the row of the new schema")
        found = [tuple(row) for row in rows.orderBy("id").collect()]
        assert found == [(1, "tea", "k"), (2, "milk", None)]
    finally:
        query.stop()
    columns = {key: value for key, value in given.items() if key != "columns"}
    frame = spark.read.format("pulsark").options(**columns).load()
    assert [(row.id, row.price) for row in frame.orderBy("id").collect()] == [(1, None), (2, 1.5)]
