"""Rows that were read with ``auto`` could not be written back, and a table was "not found".

A user read a topic with partitions with ``valueFormat`` ``auto`` and wrote the rows to a topic
without: the column ``__partition`` of the read was refused. Then ``pulsark.table`` of a topic with
messages said that the topic was not found, because nothing of it was sealed. Expected: the rows are
written; and an error that says what there is not yet, and what to do.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
from pulsar.schema import AvroSchema, Integer, Record

import pulsark
from pulsark.datasource.options.errors import NotSealedError, TopicNotFoundError
from tests.support.python_client import connected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.standalone import Standalone


class Order(Record):  # type: ignore[misc]
    n = Integer(required=True)


@pytest.fixture
def partitioned(shared_standalone: Standalone) -> str:
    """A topic with three partitions and nine messages."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    url = f"{shared_standalone.web_url}/admin/v2/persistent/public/default/{topic}/partitions"
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, b"3", headers, method="PUT")):
        pass
    with connected(shared_standalone) as client:
        producer = client.create_producer(topic, schema=AvroSchema(Order))
        for n in range(9):
            producer.send(Order(n=n), partition_key=f"k{n}")
    return topic


@pytest.mark.spark
def test_rows_of_partitions_go_to_a_topic_without(
    spark: SparkSession, shared_standalone: Standalone, partitioned: str
) -> None:
    broker = {"serviceUrl": shared_standalone.service_url, "adminUrl": shared_standalone.web_url}
    rows = spark.read.format("pulsark").options(**broker, valueFormat="auto").load(partitioned)
    target = f"{partitioned}-copy"
    rows.write.format("pulsark").options(
        **broker, topic=target, createTopic="true", valueFormat="avro"
    ).mode("append").save()
    copied = spark.read.format("pulsark").options(**broker, valueFormat="auto").load(target)
    found = {(row.n, row["__key"]) for row in copied.select("n", "__key").collect()}
    assert found == {(n, f"k{n}") for n in range(9)}


def test_a_topic_without_a_table_says_what_to_do(
    shared_standalone: Standalone, partitioned: str
) -> None:
    broker = {"serviceUrl": shared_standalone.service_url, "adminUrl": shared_standalone.web_url}
    with pytest.raises(NotSealedError, match=r"nothing of it is sealed.*pulsark topics seal"):
        pulsark.table(partitioned, **broker)
    with pytest.raises(TopicNotFoundError):
        pulsark.table("no-such-topic", **broker)
