"""The sink as a black box: what users of Spark's Kafka sink count on, and where this one differs.

``docs/spark.md`` has the table; rows that other tests show are named there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import PySparkException

from pulsark.datasource.source import PulsarkSource
from tests.spark.failing_source import FailingSource
from tests.spark.test_write import received, rows, write
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).translate(str.maketrans("[]", "__"))


def test_the_option_topic_counts_more_than_the_column(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    frame = spark.range(5).selectExpr("string(id) as value", "'none' as topic")
    write(frame, writing, topic=topic, createTopic="true")
    assert len(received(client, topic, 5)) == 5


def test_a_row_that_names_no_topic_is_an_error(
    spark: SparkSession, writing: dict[str, Any], topic: str
) -> None:
    frame = spark.range(5).selectExpr(
        "string(id) as value", f"if(id = 3, null, '{topic}') as topic"
    )
    with pytest.raises(PySparkException, match="column 'topic' is null in a row"):
        write(frame, writing, createTopic="true")


def test_a_null_value_is_a_tombstone_and_a_null_key_is_none(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    frame = spark.range(0, 4, 1, 1).selectExpr(
        "if(id = 1, null, string(id)) as value", "if(id > 1, null, 'k') as key"
    )
    write(frame, writing, topic=topic, createTopic="true")
    read = spark.read.format("pulsark").options(**writing, topic=topic).load()
    found = [(row.key, row.value) for row in read.orderBy("batch_index").collect()]
    assert found == [("k", b"0"), ("k", None), (None, b"2"), (None, b"3")]
    messages = received(client, topic, 4)
    assert [message.partition_key() for message in messages] == ["k", "k", "", ""]
    with pytest.raises(PySparkException, match="'value' is null in a row"):
        write(frame, writing, topic=topic, delivery="at-least-once")


class Asked(PulsarkSource):
    """Fails as soon as Spark asks it for a writer."""

    @classmethod
    def name(cls) -> str:
        return "asked"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        raise RuntimeError("Spark has asked the source")


def test_spark_refuses_other_modes_before_it_asks_the_source(spark: SparkSession) -> None:
    spark.dataSource.register(Asked)
    frame = rows(spark, 1)
    for mode in (None, "error", "ignore"):
        writer = frame.write.format("asked")
        with pytest.raises(PySparkException) as refused:
            (writer if mode is None else writer.mode(mode)).save()
        assert refused.value.getCondition() == "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
        assert 'use either the "Append"' in str(refused.value)
        assert "Spark has asked" not in str(refused.value)
    with pytest.raises(PySparkException, match="Spark has asked the source"):
        frame.write.format("asked").mode("append").save()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_a_stream_appends_only(
    spark: SparkSession,
    client: pulsar.Client,
    writing: dict[str, Any],
    topic: str,
    tmp_path: Path,
    mode: str,
) -> None:
    client.create_producer(topic).close()
    counts = (
        spark.readStream.format("rate")
        .load()
        .groupBy("value")
        .count()
        .selectExpr("string(value) as key", "string(count) as value")
    )
    with pytest.raises(PySparkException, match=r"(?i)update mode|outputMode\('append'\)"):
        (
            counts.writeStream.format("pulsark")
            .options(**writing, topic=topic, checkpointLocation=str(tmp_path / "checkpoint"))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )


def test_of_several_topics_one_that_fails_leaves_the_others_as_said(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    writing: dict[str, Any],
    topic: str,
) -> None:
    spark.dataSource.register(FailingSource)
    frame = spark.range(30).selectExpr(
        f"concat('{topic}-', id % 3) as topic", "string(id) as value"
    )
    gone = f"{broker.web_url}/admin/v2/persistent/public/default/{topic}-1?force=true"
    options = {**writing, "createTopic": "true", "txnAppId": "three", "txnVersion": 1}
    failing = frame.write.format("failing").options(**options, deleteFirst=gone)
    with pytest.raises(
        PySparkException,
        match=rf"{topic}-1 .*; published before: .*{topic}-0; not published: .*{topic}-1, "
        rf".*{topic}-2",
    ):
        failing.mode("append").save()
    assert len(received(client, f"{topic}-0", 10)) == 10
    assert received(client, f"{topic}-2", 0, "early") == []
    write(frame, options)  # the same again: each topic has its rows once
    for number in range(3):
        found = received(client, f"{topic}-{number}", 10, "again")
        assert Counter(int(m.data()) for m in found) == Counter(range(number, 30, 3))


def test_a_worker_that_is_killed_while_it_writes_leaves_nothing(
    spark: SparkSession,
    client: pulsar.Client,
    writing: dict[str, Any],
    topic: str,
    tmp_path: Path,
) -> None:
    spark.dataSource.register(FailingSource)
    client.create_producer(topic).close()
    frame = rows(spark, 40_000)  # several pieces for each task

    def save() -> None:
        marker = tmp_path / "killed"
        frame.write.format("failing").options(**writing, topic=topic, marker=str(marker)).mode(
            "append"
        ).save()

    with pytest.raises(Exception, match=r"(?i)worker exited unexpectedly|crashed"):
        save()
    assert received(client, topic, 0, "early") == []
    save()
    assert Counter(int(m.data()) for m in received(client, topic, 40_000)) == Counter(range(40_000))


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", ["read", "write"])
def test_a_stream_whose_worker_is_killed_has_each_row_once(
    spark: SparkSession,
    client: pulsar.Client,
    writing: dict[str, Any],
    topic: str,
    tmp_path: Path,
    kill_at: str,
) -> None:
    spark.dataSource.register(FailingSource)
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(500):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 9}")
    producer.flush()
    producer.close()
    killing = {"marker": str(tmp_path / "killed"), "killAt": kill_at}

    def run() -> None:
        source, sink = (killing, {}) if kill_at == "read" else ({}, killing)
        frame = (
            spark.readStream.format("failing" if source else "pulsark")
            .options(**writing, **source, topic=topic, startingOffsets="earliest")
            .options(columns="value,key", maxRowsPerTrigger=200)
            .load()
        )
        query = (
            frame.writeStream.format("failing" if sink else "pulsark")
            .options(**writing, **sink, topic=f"{topic}-sink", createTopic="true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException, match=r"(?i)worker exited unexpectedly|crashed"):
        run()
    run()
    found = received(client, f"{topic}-sink", 500)
    assert Counter(int(m.data()) for m in found) == Counter(range(500))
    by_key: dict[str, list[int]] = {}
    for message in found:
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
