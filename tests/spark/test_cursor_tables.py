"""Cursors as a table that is written: seeks, acknowledgements, and states of the past."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_MS = 10_000
Row = dict[str, Any]


def append(spark: SparkSession, reading: Row, *rows: Row, schema: str | None = None) -> None:
    schema = schema or "subscription string, action string, message_id string, timestamp timestamp"
    names = [column.split()[0] for column in schema.split(",")]
    frame = spark.createDataFrame([tuple(row.get(n) for n in names) for row in rows], schema)
    writer = frame.coalesce(1).write.format("pulsark").options(**reading, view="cursors")
    writer.mode("append").save()


def cursors(spark: SparkSession, reading: Row, **options: str) -> dict[str, Any]:
    found = spark.read.format("pulsark").options(**reading, view="cursors", **options).load()
    return {row.subscription: row for row in found.collect()}


def publish(client: pulsar.Client, topic: str, count: int) -> list[str]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(count)]
    return [f"{i.ledger_id()}:{i.entry_id()}" for i in ids]


def test_a_subscription_is_restored_message_by_message(
    spark: SparkSession, client: pulsar.Client, reading: Row, topic: str
) -> None:
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "s", shared)
    publish(client, topic, 10)
    messages = [consumer.receive(WAIT_MS) for _ in range(10)]
    for number in (1, 2, 5):
        consumer.acknowledge(messages[number])
    consumer.close()  # acknowledgements go out first
    before = cursors(spark, reading)["s"]
    assert before.backlog == 7
    time.sleep(1.2)  # within this they are on the disk
    then = datetime.now(UTC)
    append(spark, reading, {"subscription": "s", "action": "delete"})
    assert cursors(spark, reading) == {}
    assert cursors(spark, reading, timestampAsOf=then.isoformat())["s"].unacked == before.unacked

    append(spark, reading, {"subscription": "s", "action": "restore", "timestamp": then})
    assert cursors(spark, reading)["s"].unacked == before.unacked
    consumer = client.subscribe(topic, "s", shared)
    found = sorted(int(consumer.receive(WAIT_MS).data()) for _ in range(7))
    assert found == [0, 3, 4, 6, 7, 8, 9]
    consumer.close()


def test_every_action(spark: SparkSession, client: pulsar.Client, reading: Row, topic: str) -> None:
    ids = publish(client, topic, 5)
    append(
        spark,
        reading,
        {"subscription": "a", "action": "create", "message_id": "earliest"},
        {"subscription": "b", "action": "create"},
        {"subscription": "a", "action": "ack", "message_id": ids[1]},
        {"subscription": "a", "action": "ack", "message_id": ids[3]},
        {"subscription": "b", "action": "seek", "message_id": ids[2]},
        {"subscription": "c", "action": "create"},
        {"subscription": "c", "action": "delete"},
    )
    found = cursors(spark, reading)
    assert {name: row.backlog for name, row in found.items()} == {"a": 3, "b": 3}
    history = spark.read.format("pulsark").options(**reading, view="cursor_history").load()
    kinds = [row.change for row in history.where("subscription = 'b'").orderBy("time").collect()]
    assert kinds[-1] == "seek"


def test_a_partition_of_a_topic(
    spark: SparkSession, broker: Standalone, reading: Row, topic: str
) -> None:
    admin = AdminClient(broker.web_url)
    admin.call("PUT", f"/persistent/public/default/{topic}/partitions", 2)
    schema = "subscription string, action string, partition int"
    append(
        spark,
        reading,
        {"subscription": "s", "action": "create", "partition": 1},
        {"subscription": "all", "action": "create"},
        schema=schema,
    )
    view = spark.read.format("pulsark").options(**reading, view="cursors").load()
    found = {(row.subscription, row.partition) for row in view.collect()}
    assert found == {("s", 1), ("all", 0), ("all", 1)}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"subscription": "s", "action": "reset"}, "column 'action' is 'reset'"),
        ({"subscription": "s", "action": "seek"}, "column 'message_id' or timestamp is empty"),
        ({"subscription": "no", "action": "seek", "message_id": "1:1"}, "Subscription not found"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(
    spark: SparkSession, client: pulsar.Client, reading: Row, topic: str, row: Row, problem: str
) -> None:
    publish(client, topic, 1)
    with pytest.raises(Exception, match=problem):
        append(spark, reading, row)


def test_only_cursors_are_written_and_only_appended_to(spark: SparkSession, reading: Row) -> None:
    frame = spark.createDataFrame([("s", "delete")], "subscription string, action string")
    with pytest.raises(Exception, match="backlog cannot be written"):
        frame.write.format("pulsark").options(**reading, view="backlog").mode("append").save()
    with pytest.raises(Exception, match="append"):
        frame.write.format("pulsark").options(**reading, view="cursors").mode("overwrite").save()
