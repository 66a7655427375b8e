"""A topic whose messages take long to decode holds up the tables of others once, for two seconds.

Did: published eight messages of half a million Avro unions each to one topic, a few kilobytes when
they are compressed, and had it sealed; sealed a small topic of another namespace again and again.
Saw: the small topic waited until the other one was sealed.
Expected: at most one seal of the small topic waits, two seconds at most.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import _pulsar
import pulsar
import pytest
from pulsar.schema import Schema

from tests.support.standalone import Standalone

DELAY_SECONDS_MAX = 2.0
SEALS = 12
MESSAGES = 8
VALUES = 500_000
UNIONS = {
    "type": "record",
    "name": "T",
    "fields": [{"name": "v", "type": {"type": "array", "items": ["int", "string"]}}],
}
PAYLOAD = b"\xc0\x84\x3d" + b"\x00\x02" * VALUES + b"\x00"


class AsItIs(Schema):  # type: ignore[misc]
    """Sends bytes under a definition, as a client of another language may."""

    def __init__(self) -> None:
        super().__init__(bytes, _pulsar.SchemaType.AVRO, UNIONS, "AVRO")

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


def seal(standalone: Standalone, topic: str) -> float:
    """Seal a topic; the seconds that it took."""
    began = time.monotonic()
    path = f"{standalone.web_url}/admin/v2/persistent/{topic}/seal"
    with urlopen(Request(path, method="POST"), timeout=120) as answer:
        answer.read()
    return time.monotonic() - began


@pytest.mark.strangers
def test_a_slow_topic_delays_others_once(standalone: Standalone) -> None:
    slow, small = f"public/default/slow-{uuid.uuid4().hex[:8]}", "public/other/small"
    create = Request(f"{standalone.web_url}/admin/v2/namespaces/public/other", method="PUT")
    urlopen(create, timeout=30).close()
    client = pulsar.Client(standalone.service_url)
    try:
        producer = client.create_producer(
            slow, schema=AsItIs(), compression_type=pulsar.CompressionType.ZLib
        )
        for _ in range(MESSAGES):
            producer.send(PAYLOAD)
        other = client.create_producer(small)

        def sealed() -> float:
            other.send(b"small")
            return seal(standalone, small)

        alone = sorted(sealed() for _ in range(SEALS))[SEALS // 2]
        seconds = _during(lambda: _sealed_at_last(standalone, slow), sealed)
    finally:
        client.close()
    delayed = [one for one in seconds if one > alone + 0.5]
    assert max(seconds) < alone + DELAY_SECONDS_MAX
    assert len(delayed) <= 1, delayed


def _during(work: Callable[[], Any], act: Callable[[], float]) -> list[float]:
    """What ``act`` says, again and again until ``work`` is done."""
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        said = [act()]
        while not working.done() or len(said) < SEALS:
            said.append(act())
        working.result()
    return said


def _sealed_at_last(standalone: Standalone, topic: str) -> None:
    """Seal a topic that is set apart meanwhile: then the first attempt is refused."""
    try:
        seal(standalone, topic)
    except HTTPError as error:
        if error.code != 503:
            raise
        seal(standalone, topic)
