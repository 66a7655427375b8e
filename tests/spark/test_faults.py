"""What Spark's users see when something is gone or broken: all rows, or an error that says why."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pulsar
import pytest
from pyspark.errors import PySparkException

from tests.spark.test_stream_read import (
    WAIT_SECONDS,
    admin,
    backlog,
    eventually,
    numbers,
    publish,
    run_available,
    stream,
)
from tests.support.python_client import connected
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AWAY_SECONDS = 8.0
"""More than a process that has never reached the broker waits for it."""


def options(broker: Standalone, topic: str) -> dict[str, Any]:
    return {"serviceUrl": broker.service_url, "adminUrl": broker.web_url, "topic": topic}


def load(spark: SparkSession, reading: dict[str, Any], **more: Any) -> DataFrame:
    return spark.read.format("pulsark").options(**{"columns": "value", **reading, **more}).load()


def values(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.collect())


def test_a_broker_that_is_away_for_long(spark: SparkSession, tmp_path: Path) -> None:
    """A stream from topic to topic waits, and a batch waits as long as it is told to."""
    with Standalone(tmp_path / "data") as broker, connected(broker) as client:
        reading, checkpoint = options(broker, "in"), str(tmp_path / "checkpoint")
        publish(client, "in", range(100))
        client.create_producer("out").close()
        writer = stream(spark, reading, columns="value,key", subscription="job").writeStream
        writer = writer.format("pulsark").options(**options(broker, "out"))
        query = writer.option("checkpointLocation", checkpoint).start()
        done = options(broker, "out")
        planned = load(spark, reading, pollTimeoutMs="1000")
        assert planned._jdf.queryExecution().toRdd().getNumPartitions() > 0
        try:
            eventually(lambda: backlog(broker, "in", "job") == 0, "the first batch is written")
            broker.kill()
            began = time.monotonic()
            with pytest.raises(PySparkException, match=r"no entry .* within 1 s .*pollTimeoutMs"):
                planned.collect()
            with pytest.raises(PySparkException, match=r"nothing listens at .*the admin API would"):
                load(spark, reading).collect()
            threading.Event().wait(max(AWAY_SECONDS - (time.monotonic() - began), 0))
            broker.start()
            publish(client, "in", range(100, 200))
            eventually(lambda: backlog(broker, "in", "job") == 0, "the second batch is written")
            assert query.isActive
        finally:
            query.stop()
        assert values(load(spark, done)) == list(range(200))


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_a_topic_that_is_deleted_under_a_running_query(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    reading: dict[str, Any],
    tmp_path: Path,
    again: bool,
) -> None:
    topic = f"under-a-query-{again}"
    publish(client, topic, range(10))
    query = (
        stream(spark, {**reading, "topic": topic}, subscription="job")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="3 seconds" if again else "0 seconds")
        .start()
    )
    try:
        eventually(lambda: topic_exists(broker, topic, "job"), "the query runs")
        eventually(lambda: backlog(broker, topic, "job") == 0, "all is read")
        admin(broker, "DELETE", f"{topic}?force=true")
        if again:
            publish(client, topic, range(10, 12))
        said = "the checkpoint is of another topic" if again else f"topic .*{topic} does not exist"
        with pytest.raises(PySparkException, match=said):
            query.awaitTermination(int(WAIT_SECONDS))
    finally:
        query.stop()
    assert topic_exists(broker, topic) == again
    assert not topic_exists(broker, topic, "job")  # the query that ended left nothing behind


def topic_exists(broker: Standalone, topic: str, subscription: str | None = None) -> bool:
    try:
        found = admin(broker, "GET", f"{topic}/stats")["subscriptions"]
    except HTTPError:
        return False
    return subscription is None or subscription in found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "count", [200, pytest.param(10_000, marks=[pytest.mark.chaos, pytest.mark.long])]
)
def test_a_pattern_of_many_topics(spark: SparkSession, tmp_path: Path, count: int) -> None:
    """Every topic is read, is followed, and what comes later is found in any of them."""
    with Standalone(tmp_path / "data") as broker, connected(broker) as client:
        names = [f"many-{number}" for number in range(count)]
        for name in names:
            admin(broker, "PUT", name)
        chosen = [names[0], names[count // 2], names[-1]]
        for number, name in enumerate(chosen):
            publish(client, name, range(number, number + 1))
        reading = {**options(broker, ""), "topicsPattern": "many-.*", "subscription": "job"}
        del reading["topic"]
        sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
        run_available(stream(spark, reading), sink, checkpoint)
        assert numbers(spark, sink) == [0, 1, 2]
        assert all(topic_exists(broker, name, "job") for name in names[:50])
        for number, name in enumerate(chosen, 3):
            publish(client, name, range(number, number + 1))
        run_available(stream(spark, reading), sink, checkpoint)
        assert numbers(spark, sink) == list(range(6))
        assert [backlog(broker, name, "job") for name in chosen] == [0, 0, 0]
