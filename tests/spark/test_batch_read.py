"""``spark.read`` of topics that the official client has written."""

from __future__ import annotations

import json
import time
import urllib.request
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import AnalysisException, PySparkException

from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def create_partitioned(broker: Standalone, topic: str, partitions: int) -> None:
    request = urllib.request.Request(
        f"{broker.web_url}/admin/v2/persistent/public/default/{topic}/partitions",
        str(partitions).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).close()


def publish(client: pulsar.Client, topic: str, values: list[bytes], **settings: Any) -> None:
    producer = client.create_producer(topic, **settings)
    for value in values:
        producer.send_async(value, lambda result, _: None)
    producer.flush()
    producer.close()


def load(spark: SparkSession, reading: dict[str, Any], **more: Any) -> DataFrame:
    return spark.read.format("pulsark").options(**{**reading, **more}).load()


@pytest.mark.feature("F92")
def test_every_column_of_a_message(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    producer = client.create_producer(topic, producer_name="p-7", initial_sequence_id=40)
    sent = producer.send(
        b"hello",
        properties={"a": "1", "b": "2"},
        partition_key="key-1",
        ordering_key="order-1",
        event_timestamp=1_700_000_000_123,
    )
    producer.close()
    (row,) = load(spark, reading).collect()
    assert row.topic == f"persistent://public/default/{topic}"
    assert row.message_id == f"{sent.ledger_id()}:{sent.entry_id()}:-1:{row.batch_index}"
    assert (row.ledger_id, row.entry_id) == (sent.ledger_id(), sent.entry_id())
    assert (row.partition, row.key, row.key_base64) == (-1, "key-1", False)
    assert (bytes(row.value), bytes(row.ordering_key)) == (b"hello", b"order-1")
    assert row.properties == {"a": "1", "b": "2"}
    assert (row.producer_name, row.sequence_id) == ("p-7", 41)
    assert row.event_time.timestamp() == 1_700_000_000.123
    assert row.publish_time.year >= 2024
    assert (row.value_raw, row.deliver_at_time, row.replicated_from) == (None, None, None)


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_batches_of_every_compression(
    spark: SparkSession,
    client: pulsar.Client,
    reading: dict[str, Any],
    compression: str,
) -> None:
    topic = f"compressed-{compression}"
    publish(
        client,
        topic,
        [b"value-%d" % i for i in range(500)],
        compression_type=getattr(pulsar.CompressionType, compression),
        batching_enabled=True,
        batching_max_publish_delay_ms=50,
    )
    frame = load(spark, reading, topic=topic, columns="value,batch_size")
    rows = frame.selectExpr("cast(value as string) v", "batch_size").collect()
    assert [row.v for row in rows] == [f"value-{i}" for i in range(500)]
    assert max(row.batch_size for row in rows) > 1


def test_all_partitions_in_more_splits_than_partitions(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    topic: str,
    reading: dict[str, Any],
) -> None:
    create_partitioned(broker, topic, 2)
    values = [b"%d" % i for i in range(2000)]
    publish(client, topic, values, batching_enabled=False)
    frame = load(spark, reading, minPartitions="6", columns="partition,value")
    assert frame.rdd.getNumPartitions() >= 6
    rows = frame.selectExpr("partition", "cast(cast(value as string) as int) n").collect()
    assert sorted(row.n for row in rows) == list(range(2000))
    for partition in (0, 1):
        mine = [row.n for row in rows if row.partition == partition]
        assert mine == sorted(mine)
        assert mine


def test_a_large_topic_without_partitions_uses_all_cores(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    publish(client, topic, [bytes(10_000)] * 1000)
    frame = load(spark, reading, columns="entry_id")
    assert frame.rdd.getNumPartitions() > 1
    assert frame.count() == 1000


def test_sql_and_offsets(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % i) for i in range(10)]
    producer.close()
    start, end = (f"{ids[i].ledger_id()}:{ids[i].entry_id()}" for i in (3, 6))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING pulsark OPTIONS ("
        f"`service.url` '{reading['serviceUrl']}', `admin.url` '{reading['adminUrl']}', "
        f"topic '{topic}', startingOffsets '{json.dumps({topic: start})}', "
        f"endingOffsets '{json.dumps({topic: {'0': end}})}')"
    )
    rows = spark.sql("SELECT cast(value AS string) v FROM messages ORDER BY entry_id").collect()
    assert [row.v for row in rows] == ["3", "4", "5", "6"]


def test_a_schema_of_ones_own_is_a_selection(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    publish(client, topic, [b"x"])
    reader = spark.read.format("pulsark").options(**reading)
    frame = reader.schema("value BINARY, partition INT").load()
    assert frame.columns == ["value", "partition"]
    assert frame.collect()[0].partition == -1
    with pytest.raises(PySparkException, match="'value' is binary, not string"):
        reader.schema("value STRING").load().collect()


def test_several_topics_and_a_path(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    for suffix in ("a", "b"):
        publish(client, f"{topic}-{suffix}", [suffix.encode()])
    where = {key: value for key, value in reading.items() if key != "topic"}
    reader = spark.read.format("pulsark").options(**where)
    assert reader.option("topicsPattern", f"{topic}-.*").load().count() == 2
    only = spark.read.format("pulsark").options(**where).load(f"public/default/{topic}-a")
    assert bytes(only.collect()[0].value) == b"a"


def test_an_empty_topic_is_an_empty_frame(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    client.create_producer(topic).close()
    assert load(spark, reading).count() == 0


def test_wrong_options_say_what_is_valid(spark: SparkSession, reading: dict[str, Any]) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, reading, startingOfsets="earliest")
    message = str(caught.value)
    assert "option 'startingofsets' is unknown; did you mean 'startingOffsets'?" in message
    assert "Valid options: serviceUrl, adminUrl, authPluginClassName, authParams" in message


def test_an_unknown_topic_is_named(spark: SparkSession, reading: dict[str, Any]) -> None:
    with pytest.raises(PySparkException, match="topic persistent://public/default/no-such does"):
        load(spark, reading, topic="no-such").count()


def test_a_span_of_time_and_values_as_text(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: dict[str, Any]
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for value in (b"a", b"\xff", b"c", b"d"):
        producer.send(value)
        time.sleep(0.005)  # a publish time of its own
    producer.close()
    times = [row.publish_time for row in load(spark, reading, columns="publish_time").collect()]
    start, end = (f"{times[i].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}" for i in (1, 3))
    frame = load(
        spark,
        reading,
        startingTimestamp=start,
        endingTimestamp=end,
        valueFormat="string",
        includeProperties="false",
        maxRecordsPerPartition="1",
    )
    assert frame.schema["value"].dataType.simpleString() == "string"
    assert "properties" not in frame.columns
    assert frame.rdd.getNumPartitions() == 2
    assert [bytes(row.v) for row in frame.selectExpr("cast(value as binary) v").collect()] == [
        b"\xff", b"c",
    ]  # fmt: skip
    late = load(spark, reading, startingTimestamp="2100-01-01")
    with pytest.raises(PySparkException, match="has no message published at 2100-01-01T"):
        late.count()
