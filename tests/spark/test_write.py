"""``df.write``: what consumers get is what the DataFrame had, once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from pulsark.wire.routing import partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = 1_700_000_000_000


def rows(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    return spark.range(0, count, 1, parts).selectExpr(
        "cast(id as string) as value",
        "concat('k', id % 50) as key",
        "map('n', cast(id as string), 'from', 'spark') as properties",
        f"timestamp_millis({NOW_MS} + id) as event_time",
    )


def write(frame: DataFrame, options: dict[str, Any], **more: Any) -> None:
    frame.write.format("pulsark").options(**options, **more).mode("append").save()


def received(
    client: pulsar.Client, topic: str, count: int, name: str = "s", seconds: float = 30.0
) -> list[pulsar.Message]:
    """The messages of a topic, from the first on; and that no more come."""
    consumer = client.subscribe(
        topic, name, pulsar.ConsumerType.Exclusive,
        initial_position=pulsar.InitialPosition.Earliest,
    )  # fmt: skip
    try:
        return list(_receive(consumer, count, seconds))
    finally:
        consumer.close()


def _receive(consumer: Any, count: int, seconds: float) -> Iterator[pulsar.Message]:
    until = time.monotonic() + seconds
    for _ in range(count):
        message = consumer.receive(max(int((until - time.monotonic()) * 1000), 1))
        consumer.acknowledge(message)
        yield message
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


def test_consumers_get_the_rows_as_messages(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    write(rows(spark, 5000), writing, topic=topic, createTopic="true")
    found = received(client, topic, 5000)
    assert sorted(int(m.data()) for m in found) == list(range(5000))
    for message in found:
        number = int(message.data())
        assert message.partition_key() == f"k{number % 50}"
        assert message.properties() == {"n": str(number), "from": "spark"}
        assert message.event_timestamp() == NOW_MS + number
    read = spark.read.format("pulsark").options(**writing, topic=topic).load()
    assert read.count() == 5000
    assert {
        row.producer_name[:13] for row in read.select("producer_name").distinct().collect()
    } == {"pulsark.bulk."}


@pytest.mark.parametrize("partitions", [7, 16])
@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash", "BoostHash"])
def test_keys_have_the_partitions_that_clients_give_them(
    spark: SparkSession,
    client: pulsar.Client,
    writing: dict[str, Any],
    topic: str,
    partitions: int,
    scheme: str,
) -> None:
    name = f"{topic}-{partitions}-{scheme}".translate(str.maketrans("[]", "__"))
    write(
        rows(spark, 400), writing, topic=name, createTopic="true", numPartitions=partitions,
        hashingScheme=scheme,
    )  # fmt: skip
    found = received(client, name, 400)
    for message in found:
        key = message.partition_key()
        assert message.message_id().partition() == partition_of(key, partitions, scheme)
    if scheme != "BoostHash":
        return
    # The Python client's default: what it publishes itself goes to the same places.
    places = {m.partition_key(): m.message_id().partition() for m in found}
    producer = client.create_producer(name)
    for key in places:
        assert producer.send(b"", partition_key=key).partition() == places[key]
    producer.close()


def test_one_keys_order_is_kept(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    write(
        rows(spark, 3000, 3), writing, topic=topic, createTopic="true", numPartitions=4,
        batchingMaxMessages=7,
    )  # fmt: skip
    by_key: dict[str, list[int]] = {}
    for message in received(client, topic, 3000):
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
    assert len(by_key) == 50
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), key


def test_consumers_that_are_connected_get_it_at_once_between_what_is_sent(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "latest")
    producer.send(b"before")
    assert consumer.receive(5000).data() == b"before"
    write(rows(spark, 10, 1), writing, topic=topic)
    producer.send(b"after")
    found = [consumer.receive(5000).data() for _ in range(11)]
    assert found == [*(b"%d" % i for i in range(10)), b"after"]
    consumer.close()
    producer.close()


def test_rows_name_their_topics(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    frame = spark.range(90).selectExpr(
        f"concat('{topic}-', id % 3) as topic", "cast(id as string) as value"
    )
    write(frame, writing, createTopic="true")
    for number in range(3):
        found = received(client, f"{topic}-{number}", 30)
        assert sorted(int(m.data()) for m in found) == list(range(number, 90, 3))


def test_all_columns_and_their_kinds(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    due = int(time.time() * 1000) + 3000
    frame = spark.sql(
        f"""select cast('v' as binary) value, cast('k\\u00e9' as binary) key, 'o' ordering_key,
        map('a', 'b', 'null', cast(null as string)) properties, {NOW_MS}L event_time,
        {due}L deliver_at"""
    )
    write(frame, writing, topic=topic, createTopic="true")
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )  # fmt: skip
    message = consumer.receive(20_000)
    assert time.time() * 1000 >= due - 1500
    assert message.data() == b"v"
    assert message.ordering_key() == "o"
    assert message.properties() == {"a": "b", "null": ""}
    assert message.event_timestamp() == NOW_MS
    consumer.close()
    (row,) = spark.read.format("pulsark").options(**writing, topic=topic).load().collect()
    assert row.key_base64
    assert row.deliver_at_time == datetime.fromtimestamp(due / 1000, UTC).replace(tzinfo=None)


def test_a_write_with_an_id_of_its_own_is_done_once(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    for _ in range(2):
        write(rows(spark, 20), writing, topic=topic, createTopic="true", txnAppId="a", txnVersion=5)
    write(rows(spark, 7), writing, topic=topic, txnAppId="a", txnVersion=4)
    write(rows(spark, 1), writing, topic=topic, txnAppId="a", txnVersion=6)
    assert len(received(client, topic, 21)) == 21


def test_nothing_of_a_write_that_fails_is_there(
    spark: SparkSession,
    client: pulsar.Client,
    writing: dict[str, Any],
    topic: str,
) -> None:
    client.create_producer(topic).close()
    frame = rows(spark, 2000).selectExpr(
        "value", "if(int(value) = 1999, cast(raise_error('no') as string), key) as key"
    )
    with pytest.raises(Exception, match="no"):
        write(frame, writing, topic=topic)
    assert received(client, topic, 0) == []
    write(rows(spark, 5), writing, topic=topic)
    assert len(received(client, topic, 5, "again")) == 5


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_name_their_partitions(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str, delivery: str
) -> None:
    name = topic.replace("[", "-").replace("]", "")
    options = {**writing, "topic": name, "delivery": delivery}
    frame = spark.range(300).selectExpr(
        "cast(id as string) as value", "concat('k', id % 50) as key",
        "if(id % 4 = 3, null, int(id % 4)) as partition",
    )  # fmt: skip
    write(frame, options, createTopic="true", numPartitions=3)
    for message in received(client, name, 300):
        number = int(message.data())
        by_key = partition_of(f"k{number % 50}", 3, "JavaStringHash")
        expected = by_key if number % 4 == 3 else number % 4
        assert message.message_id().partition() == expected
    for column, message in (
        ("3", "is 3 in a row, but topic .* has partitions 0 to 2"),
        ("'a'", "column 'partition' is string"),
    ):
        with pytest.raises(Exception, match=message):
            write(frame.selectExpr("value", f"{column} as partition"), options)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_at_least_once_goes_through_the_broker(
    spark: SparkSession,
    client: pulsar.Client,
    writing: dict[str, Any],
    topic: str,
    compression: str,
) -> None:
    name = topic.replace("[", "-").replace("]", "")
    write(
        rows(spark, 300), writing, topic=name, createTopic="true", numPartitions=3,
        delivery="at-least-once", compression=compression,
    )  # fmt: skip
    found = received(client, name, 300)
    assert Counter(int(m.data()) for m in found) == Counter(range(300))
    for message in found:
        key = message.partition_key()
        assert message.message_id().partition() == partition_of(key, 3, "JavaStringHash")


def test_what_is_wrong_is_said_before_anything_is_written(
    spark: SparkSession, writing: dict[str, Any], topic: str
) -> None:
    frame = rows(spark, 5)
    for options, renamed, message in (
        ({"topik": topic}, {}, "did you mean 'topic'"),
        ({"topic": topic, "hashingScheme": "crc"}, {}, "hashingScheme"),
        ({"topic": topic}, {}, "createTopic"),
        ({}, {}, "set option 'topic'"),
        ({"topic": topic}, {"key": "ky"}, "did you mean 'key'"),
        ({"topic": topic}, {"value": "__key"}, "mean the same"),
        ({"topic": topic, "numPartitions": 3}, {}, "createTopic"),
        ({"topic": topic, "txnAppId": "a"}, {}, "txnVersion"),
    ):
        with pytest.raises(Exception, match=message):
            write(frame.withColumnsRenamed(renamed), writing, **options)
    with pytest.raises(Exception, match=r"(?i)append"):
        frame.write.format("pulsark").options(**writing, topic=topic).save()
    with pytest.raises(Exception, match=r"(?i)append"):
        frame.write.format("pulsark").options(**writing, topic=topic).mode("overwrite").save()
