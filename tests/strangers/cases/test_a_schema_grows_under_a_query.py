"""A field was added and another one widened, and queries of a loaded DataFrame did not say so.

Users loaded a topic with ``valueFormat`` ``auto``. While a stream ran, a producer added a field:
its values were in no column and nobody was told. Another stream, started from a DataFrame that was
loaded before a column widened, failed with ``column 'a' is bigint, not int``, even with
``schemaEvolutionMode`` ``ignore``. Expected: an error that says what changed and what to do; or,
with ``ignore``, the columns of ``load()`` and the payload of what they do not show.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from pulsar.schema import AvroSchema

from tests.support.python_client import connected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.standalone import Standalone

pytestmark = pytest.mark.spark
BIG = 5_000_000_000


def avro(**fields: Any) -> AvroSchema:
    members = [
        {"name": name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for name, kind in fields.items()
    ]
    return AvroSchema(None, schema_definition={"type": "record", "name": "R", "fields": members})


def publish(broker: Standalone, topic: str, schema: AvroSchema, *values: dict[str, Any]) -> None:
    with connected(broker) as client:
        producer = client.create_producer(topic, schema=schema, batching_enabled=False)
        for value in values:
            producer.send(value)


@pytest.fixture
def topic(shared_standalone: Standalone) -> str:
    """A topic in a namespace whose schemas may widen."""
    namespace = f"public/grows-{uuid.uuid4().hex[:8]}"
    base = f"{shared_standalone.web_url}/admin/v2/namespaces/{namespace}"
    for path, body in (("", {}), ("/schemaCompatibilityStrategy", "BACKWARD")):
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(base + path, json.dumps(body).encode(), headers, method="PUT")):
            pass
    return f"persistent://{namespace}/orders"


def test_a_loaded_dataframe_and_a_running_stream(
    spark: SparkSession, shared_standalone: Standalone, topic: str, tmp_path: Path
) -> None:
    broker = shared_standalone
    first = avro(a="int")
    second = avro(a="long", b=["null", "string"])
    options = {
        "serviceUrl": broker.service_url,
        "adminUrl": broker.web_url,
        "valueFormat": "auto",
        "startingOffsets": "earliest",
    }
    publish(broker, topic, first, {"a": 1})

    def stream(**more: str) -> Any:
        return spark.readStream.format("pulsark").options(**options, **more).load(topic)

    def start(frame: Any, name: str) -> Any:
        place = str(tmp_path / name)
        return (
            frame.writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", place)
            .start()
        )

    running = start(stream(), "running")
    ignoring = stream(schemaEvolutionMode="ignore")
    failing = stream()
    batch = spark.read.format("pulsark").options(**options).load(topic)
    try:
        running.processAllAvailable()
        publish(broker, topic, second, {"a": BIG, "b": "new"})
        with pytest.raises(Exception, match=r"adds or widens a, b.* Call load\(\) again"):
            running.processAllAvailable()
    finally:
        running.stop()
    query = start(ignoring, "ignoring")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    found = spark.table("ignoring").select("a", "__valueRaw").orderBy("__entryId").collect()
    assert [row.a for row in found] == [1, None]
    assert found[0]["__valueRaw"] is None
    assert b"new" in found[1]["__valueRaw"]
    with pytest.raises(Exception, match=r"adds or widens a, b.* Call load\(\) again"):
        start(failing, "failing").processAllAvailable()
    with pytest.raises(Exception, match=r"adds or widens a, b.* Call load\(\) again"):
        batch.collect()
    again = spark.read.format("pulsark").options(**options).load(topic)
    rows = again.select("a", "b").orderBy("a").collect()
    assert [tuple(row) for row in rows] == [(1, None), (BIG, "new")]
