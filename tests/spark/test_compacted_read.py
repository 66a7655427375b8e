"""``readCompacted``: the rows are what a reader of the official client receives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import PySparkException

from pulsark.admin_client.client import AdminClient
from pulsark.cli.admin.topics import compact_topic
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_MS = 10_000
Message = tuple[str, str, str, bytes]


def publish(client: pulsar.Client, topic: str, *messages: tuple[str, bytes], batch: bool) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=batch,
        batching_max_messages=3,
        batching_max_publish_delay_ms=100,
    )
    for key, value in messages:
        # Without a key: the Python client has none for an empty one.
        producer.send_async(value, lambda result, _: None, partition_key=key or None)
    producer.flush()
    producer.close()


def compact(broker: Standalone, topic: str) -> None:
    compact_topic(topic, admin_url=broker.web_url)


def received(client: pulsar.Client, topic: str, first: pulsar.MessageId) -> list[Message]:
    """All that a reader of the compacted topic gets."""
    reader = client.create_reader(
        topic, first, is_read_compacted=True, start_message_id_inclusive=True
    )
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        place = message.message_id()
        # This client shows members of a batch that were removed as messages without anything.
        if message.partition_key() or message.data():
            ids = f"{place.ledger_id()}:{place.entry_id()}", str(place.batch_index())
            found.append((*ids, message.partition_key(), message.data()))
    reader.close()
    return found


def rows(spark: SparkSession, reading: dict[str, Any], **options: str) -> list[Message]:
    reader = spark.read.format("pulsark").options(**{**reading, "readCompacted": "true", **options})
    columns = "ledger_id, entry_id, batch_index, key, value"
    frame = reader.option("columns", columns.replace(" ", "")).load()
    return [
        (
            f"{row.ledger_id}:{row.entry_id}",
            str(row.batch_index),
            row.key or "",
            bytes(row.value or b""),
        )
        for row in frame.orderBy("ledger_id", "entry_id", "batch_index").collect()
    ]


@pytest.mark.feature("F91", "F92")
@pytest.mark.parametrize("batch", [False, True])
def test_rows_are_what_a_reader_of_the_client_receives(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    reading: dict[str, Any],
    batch: bool,
) -> None:
    topic = f"compacted-{batch}"
    reading = {**reading, "topic": topic}
    earliest = pulsar.MessageId.earliest
    first = [(f"k{n % 20}", b"%d" % n) for n in range(100)]
    publish(client, topic, *first, ("k3", b""), ("", b"no key"), batch=batch)
    assert rows(spark, reading) == received(client, topic, earliest)  # never compacted: all
    compact(broker, topic)
    tail = (("k1", b"new"), ("k2", b""), ("", b"no key"), ("k2", b"again"))
    publish(client, topic, *tail, batch=batch)
    expected = received(client, topic, earliest)
    assert len(expected) == 19 + len(tail)
    for options in ({}, {"minPartitions": "5"}, {"maxRecordsPerPartition": "4"}):
        assert rows(spark, reading, **options) == expected
    for start in (5, 15, 18, 20):
        place, *_ = expected[start]
        ledger_id, entry_id = (int(number) for number in place.split(":"))
        offsets = {"startingOffsets": json.dumps({topic: place})}
        wanted = [
            message
            for message in received(client, topic, pulsar.MessageId(-1, ledger_id, entry_id, -1))
            if tuple(map(int, message[0].split(":"))) >= (ledger_id, entry_id)
        ]
        assert wanted
        assert rows(spark, reading, **offsets) == wanted
    # What was compacted stays when the topic is trimmed, and is compacted further.
    AdminClient(broker.web_url).call("PUT", f"/persistent/public/default/{topic}/unload")
    compact(broker, topic)
    publish(client, topic, ("k9", b"last"), batch=batch)
    AdminClient(broker.web_url).call("DELETE", f"/persistent/public/default/{topic}/truncate")
    expected = received(client, topic, earliest)
    assert len(expected) > 15
    assert rows(spark, reading, readCompacted="false") == []
    # The last message was not compacted, so it is lost, and only who allows that reads on.
    with pytest.raises(PySparkException, match="were deleted"):
        rows(spark, reading)
    assert rows(spark, reading, failOnDataLoss="false") == expected


def test_all_partitions_and_the_latest_of_each_key(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    reading: dict[str, Any],
    topic: str,
) -> None:
    AdminClient(broker.web_url).call("PUT", f"/persistent/public/default/{topic}/partitions", 3)
    publish(client, topic, *((f"k{n % 50}", b"%d" % n) for n in range(300)), batch=True)
    compact(broker, topic)
    frame = spark.read.format("pulsark").options(**reading, readCompacted="true").load()
    found = frame.selectExpr("key", "cast(cast(value AS STRING) AS INT) n", "partition").collect()
    assert {row.key: row.n for row in found} == {f"k{n % 50}": n for n in range(250, 300)}
    assert len(found) == 50
    assert {row.partition for row in found} == {0, 1, 2}


def test_a_stream_says_what_to_do_instead(spark: SparkSession, reading: dict[str, Any]) -> None:
    stream = spark.readStream.format("pulsark").options(**reading, readCompacted="true").load()
    with pytest.raises(Exception, match="batch again after a failure"):
        stream.writeStream.format("noop").start().awaitTermination()
