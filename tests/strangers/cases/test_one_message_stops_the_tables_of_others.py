"""One message kept everybody's topics out of their tables.

Did: published 100 KB of a linked list (an Avro record that contains itself) to one topic, and a
kilobyte, compressed, of a record whose types share each other over 20 levels to another.
Saw: the process that seals died of the first, again and again, and took a minute for the second;
topics of other tenants were not sealed meanwhile.
Expected: both messages are in their tables as they were sent, statistics count them, and other
topics notice nothing.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any
from urllib.request import Request, urlopen

import _pulsar
import pulsar
import pytest
from pulsar.schema import Schema

from tests.support.standalone import Standalone

LINKED = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "v", "type": "int"},
        {"name": "next", "type": ["null", "Node"], "default": None},
    ],
}
LEVELS = 20


def doubled() -> dict[str, Any]:
    """A record with a field that stands for 2**LEVELS numbers."""
    inner: Any = "int"
    for level in range(LEVELS):
        again = inner if isinstance(inner, str) else inner["name"]
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        inner = {"type": "record", "name": f"R{level}", "fields": fields}
    fields = [{"name": "v", "type": "int"}, {"name": "u", "type": ["null", "int", inner]}]
    return {"type": "record", "name": "Top", "fields": fields}


POISON = [
    (LINKED, b"\x02\x02" * 50_000 + b"\x02\x00"),
    (doubled(), b"\x02\x04" + b"\x02" * 2**LEVELS),
]
GOOD = b"\x0e\x00"
"""A value 7 of both schemas."""


class AsItIs(Schema):  # type: ignore[misc]
    """Sends bytes under a definition, as a client of another language may."""

    def __init__(self, definition: Any) -> None:
        super().__init__(bytes, _pulsar.SchemaType.AVRO, definition, "AVRO")

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


def http(standalone: Standalone, method: str, path: str) -> bytes:
    with urlopen(Request(f"{standalone.web_url}{path}", method=method), timeout=60) as answer:
        return bytes(answer.read())


@pytest.fixture
def topics(shared_standalone: Standalone) -> list[str]:
    """Topics with a good and a poisoned message each."""
    names = [f"public/default/poison-{uuid.uuid4().hex[:8]}" for _ in POISON]
    client = pulsar.Client(shared_standalone.service_url)
    try:
        for name, (definition, payload) in zip(names, POISON, strict=True):
            producer = client.create_producer(
                name, schema=AsItIs(definition), compression_type=pulsar.CompressionType.ZLib
            )
            producer.send(GOOD)
            producer.send(payload)
    finally:
        client.close()
    return names


def test_poisoned_messages_are_kept_and_others_are_sealed(
    shared_standalone: Standalone, topics: list[str]
) -> None:
    for name in topics:
        began = time.monotonic()
        http(shared_standalone, "POST", f"/admin/v2/persistent/{name}/seal")
        assert time.monotonic() - began < 30
        table = json.loads(http(shared_standalone, "GET", f"/admin/v2/persistent/{name}/table"))
        assert table["rows"] == 2
        stats = json.loads(http(shared_standalone, "GET", f"/admin/v2/persistent/{name}/stats"))
        assert stats["sealing"] == {"payloadsBeyondBounds": 1}
    lines = http(shared_standalone, "GET", "/metrics").decode().splitlines()
    (count,) = (line for line in lines if line.startswith("pulsark_payloads_kept_raw_total"))
    assert float(count.split()[-1]) >= len(topics)


@pytest.mark.spark
def test_spark_reads_poisoned_messages_as_they_were_sent(
    shared_standalone: Standalone, topics: list[str], spark: Any
) -> None:
    for name, (_, payload) in zip(topics, POISON, strict=True):
        rows = (
            spark.read.format("pulsark")
            .options(serviceUrl=shared_standalone.service_url, topic=name)
            .option("adminUrl", shared_standalone.web_url)
            .option("valueFormat", "auto")
            .load()
            .select("v", "__valueRaw")
            .collect()
        )
        found = {(row["v"], row["__valueRaw"] and bytes(row["__valueRaw"])) for row in rows}
        assert found == {(7, None), (None, payload)}
