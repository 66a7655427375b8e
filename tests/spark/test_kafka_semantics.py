"""The source as a black box: what users of Spark's Kafka source count on, row by row.

``docs/spark.md`` has the table, with what differs; rows that other tests show are named there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import PySparkException

from tests.support.spark_streams import admin, numbers, publish, run_available, stream
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, reading: dict[str, Any], **more: Any) -> DataFrame:
    options = {"columns": "value,partition", **reading, **more}
    return spark.read.format("pulsark").options(**options).load()


def values(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_starting_offsets_count_for_a_new_query_only(
    spark: SparkSession,
    client: pulsar.Client,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    publish(client, topic, range(5))
    run_available(stream(spark, reading, startingOffsets="latest"), sink, checkpoint)
    publish(client, topic, range(5, 8))
    run_available(stream(spark, reading, startingOffsets="earliest"), sink, checkpoint)
    assert numbers(spark, sink) == [5, 6, 7]


def test_a_topic_that_matches_later_is_read_from_its_start(
    spark: SparkSession,
    client: pulsar.Client,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    given = {key: value for key, value in reading.items() if key != "topic"}
    given |= {"topicsPattern": f"{topic}-.*", "startingOffsets": "latest"}
    publish(client, f"{topic}-a", range(5))
    run_available(stream(spark, given, startingOffsets="latest"), sink, checkpoint)
    publish(client, f"{topic}-b", range(10, 13))
    run_available(stream(spark, given, startingOffsets="latest"), sink, checkpoint)
    assert numbers(spark, sink) == [10, 11, 12]


def test_offsets_of_each_partition(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
) -> None:
    admin(broker, "PUT", f"{topic}/partitions", 3)
    ids = {}
    for partition in range(3):
        producer = client.create_producer(f"{topic}-partition-{partition}", batching_enabled=False)
        sent = [producer.send(b"%d" % (10 * partition + i)) for i in range(4)]
        ids[partition] = [f"{each.ledger_id()}:{each.entry_id()}" for each in sent]
        producer.close()
    start = {topic: {"0": ids[0][2], "1": "earliest", "2": "latest"}}
    assert values(load(spark, reading, startingOffsets=json.dumps(start))) == [2, 3, 10, 11, 12, 13]
    end = {topic: {"0": ids[0][1], "1": "latest", "2": ids[2][0]}}
    # Kafka's source leaves the ending offset out; here it is the last message that is read.
    assert values(load(spark, reading, endingOffsets=json.dumps(end))) == [0, 1, 10, 11, 12, 13, 20]


def test_what_was_deleted_fails_or_is_skipped(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    publish(client, topic, range(5))
    run_available(stream(spark, reading), sink, checkpoint)
    publish(client, topic, range(5, 10))
    admin(broker, "PUT", f"{topic}/unload")  # the next message goes into a ledger of its own
    publish(client, topic, range(10, 12))
    admin(broker, "DELETE", f"{topic}/truncate")
    with pytest.raises(PySparkException, match=r"messages after .* were deleted, up to"):
        run_available(stream(spark, reading), sink, checkpoint)
    run_available(stream(spark, reading, failOnDataLoss="false"), sink, checkpoint)
    found = numbers(spark, sink)
    assert found[:5] == list(range(5))
    assert set(found[5:]) <= set(range(5, 12))


def test_a_deleted_topic_stops_a_stream(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    publish(client, topic, range(5))
    run_available(stream(spark, reading), sink, checkpoint)
    admin(broker, "DELETE", f"{topic}?force=true")
    with pytest.raises(PySparkException, match=f"topic .*{topic} does not exist"):
        run_available(stream(spark, reading), sink, checkpoint)
    publish(client, topic, range(5, 8))  # another topic of the same name
    with pytest.raises(PySparkException, match="the checkpoint is of another topic"):
        run_available(stream(spark, reading), sink, checkpoint)
    run_available(stream(spark, reading, failOnDataLoss="false"), sink, checkpoint)
    assert numbers(spark, sink) == list(range(8))


def test_a_dataframe_stays_as_the_topic_was(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    publish(client, topic, range(3))
    frame = load(spark, reading)
    assert values(frame) == [0, 1, 2]
    publish(client, topic, range(3, 5))
    assert values(frame) == [0, 1, 2]
    assert values(load(spark, reading)) == [0, 1, 2, 3, 4]
