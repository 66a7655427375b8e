"""Views of topics and cursors as tables, and SQL over a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import PySparkException

import pulsark
from pulsark.datasource.read.views import VIEWS
from tests.support.python_client import connect
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reading = dict[str, Any]


def load(spark: SparkSession, reading: Reading, view: str, **more: str) -> DataFrame:
    return spark.read.format("pulsark").options(**{**reading, "view": view, **more}).load()


UNACKED_ORDERS = """
    SELECT CAST(o.value AS STRING) AS value
    FROM {messages} o
    JOIN (SELECT topic, partition, explode(unacked) AS left FROM {cursors}
          WHERE subscription = 'billing') c
      ON o.topic = c.topic AND o.partition = c.partition AND o.ledger_id = c.left.ledger_id
     AND o.entry_id BETWEEN c.left.first_entry_id AND c.left.last_entry_id
     AND (c.left.batch_indexes IS NULL OR array_contains(c.left.batch_indexes, o.batch_index))
    ORDER BY value
"""


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A broker that takes acknowledgements of parts of a batch."""
    setting = {"PULSARK_acknowledgmentAtBatchIndexLevelEnabled": "true"}
    with Standalone(tmp_path_factory.mktemp("exact") / "data", env=setting) as standalone:
        yield standalone


@pytest.mark.parametrize("batching", [False, True])
def test_which_messages_has_a_subscription_not_acknowledged(
    spark: SparkSession, exact: Standalone, batching: bool
) -> None:
    topic = f"unacked-{batching}"
    reading = {"serviceUrl": exact.service_url, "adminUrl": exact.web_url, "topic": topic}
    client = connect(exact)
    consumer = client.subscribe(
        topic,
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        batch_index_ack_enabled=True,
    )
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_max_publish_delay_ms=1000
    )
    for i in range(10):
        producer.send_async(b"%d" % i, lambda result, _: None)
    producer.flush()
    for _ in range(10):
        message = consumer.receive(10_000)
        if int(message.data()) % 3 == 0:
            consumer.acknowledge(message)
    client.close()
    left = spark.sql(
        UNACKED_ORDERS,
        messages=spark.read.format("pulsark").options(**reading).load(),
        cursors=load(spark, reading, "cursors"),
    )
    assert [int(row.value) for row in left.collect()] == [1, 2, 4, 5, 7, 8]


def test_each_view_of_a_topic(
    spark: SparkSession, client: pulsar.Client, topic: str, reading: Reading
) -> None:
    consumer = client.subscribe(topic, "s", properties={"app": "t"})
    producer = client.create_producer(topic, producer_name="p", schema=pulsar.schema.StringSchema())
    producer.send("one")
    full = f"persistent://public/default/{topic}"
    rows = {view: load(spark, reading, view).collect() for view in VIEWS}
    assert {len(found) for found in rows.values()} == {1}
    assert {row.topic for (row,) in rows.values()} == {full}
    assert rows["topics"][0].entries == 1
    assert rows["topics"][0].last_publish_time.year >= 2024
    assert rows["backlog"][0].backlog_entries == 1
    assert rows["backlog"][0].lag_seconds >= 0
    assert rows["producers"][0].producer_name == "p"
    assert rows["consumers"][0].metadata == {"app": "t"}
    assert rows["cursors"][0].unacked[0].first_entry_id == 0
    assert rows["schemas"][0].type == "STRING"
    assert rows["ledgers"][0].open
    some = load(spark, reading, "backlog", columns="subscription,backlog_entries")
    assert [tuple(row) for row in some.collect()] == [("s", 1)]
    consumer.close()
    producer.close()


def test_views_are_for_batches(spark: SparkSession, reading: Reading) -> None:
    frame = spark.readStream.format("pulsark").options(**reading, view="topics").load()
    with pytest.raises(PySparkException, match=r"'view' is for spark\.read, not for"):
        frame.writeStream.format("noop").start().awaitTermination()


def test_sql_over_a_namespace(
    spark: SparkSession, client: pulsar.Client, broker: Standalone
) -> None:
    for name in ("sql-orders", "sql.bills"):
        client.create_producer(name).send(b"x")
    names = pulsark.register_topics(
        spark, adminUrl=broker.web_url, topicsPattern=r"sql[.-].*", columns="topic,value"
    )
    assert names[:2] == ["sql-orders", "sql.bills"]
    assert spark.sql("SELECT * FROM `sql-orders`").columns == ["topic", "value"]
    assert spark.sql("SELECT count(*) FROM `sql.bills`").first()[0] == 1  # type: ignore[index]
    known = spark.sql("SELECT topic FROM pulsark_topics").collect()
    assert "persistent://public/default/sql.bills" in {row.topic for row in known}
