"""A new Spark user made mistakes and got errors about something else, under long tracebacks.

A token that had expired was "Authentication required"; a wrong ``serviceUrl`` was not noticed;
INSERT INTO a view failed with an unknown option; a key from Python and one from Spark were in two
partitions. Expected: one message that names the mistake, and ``hashingScheme=auto``.
"""

from __future__ import annotations

import socket
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.python_client import connected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.standalone import Standalone

pytestmark = pytest.mark.spark
KEYS = 40
FRAMES_MAX = 6


@pytest.fixture
def broker(shared_standalone: Standalone) -> dict[str, Any]:
    return {"serviceUrl": shared_standalone.service_url, "adminUrl": shared_standalone.web_url}


def test_mistakes_are_named(spark: SparkSession, broker: dict[str, Any]) -> None:
    from pyspark.errors import PySparkException

    def told(**options: str) -> str:
        frame = spark.read.format("pulsark").options(**{**broker, "topic": "none", **options})
        with pytest.raises(PySparkException) as caught:
            frame.load().collect()
        return str(caught.value)

    text = told()
    assert "topic persistent://public/default/none does not exist" in text
    assert text.count("  File ") <= FRAMES_MAX
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"pulsar://127.0.0.1:{server.getsockname()[1]}"
    assert f"'serviceUrl': nothing listens at {free}" in told(serviceUrl=free)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING pulsark OPTIONS ("
        f"topic 'none', columns 'value', serviceUrl '{broker['serviceUrl']}', "
        f"adminUrl '{broker['adminUrl']}')"
    )
    with pytest.raises(PySparkException, match="'columns' is unknown for a write: it is for read"):
        spark.sql("INSERT INTO orders VALUES (X'00')")


def test_keys_of_spark_go_where_those_of_python_go(
    spark: SparkSession, broker: dict[str, Any], shared_standalone: Standalone
) -> None:
    topic = f"keys-{uuid.uuid4().hex[:8]}"

    def write(**options: str) -> None:
        rows = spark.range(0, KEYS, 1, 1).selectExpr("'s' AS value", "concat('k', id) AS key")
        rows.write.format("pulsark").options(**broker, topic=topic, **options).mode("append").save()

    rows = spark.range(1).selectExpr("'x' AS value")
    rows.write.format("pulsark").options(
        **broker, topic=topic, createTopic="true", numPartitions="5"
    ).mode("append").save()
    with connected(shared_standalone) as client:
        producer = client.create_producer(topic)
        for number in range(KEYS):
            producer.send(b"p", partition_key=f"k{number}")
    write(hashingScheme="auto")
    found = spark.read.format("pulsark").options(**broker, startingOffsets="earliest").load(topic)
    places = found.where("key IS NOT NULL").groupBy("key").agg({"partition": "collect_set"})
    assert [len(row[1]) for row in places.collect()] == [1] * KEYS
