"""A new Spark user deleted one topic of a pattern, long after a stream had read it, and it stopped.

The other topics of the pattern were not read any more, and once the topic was made again, the
checkpoint was useless: "of another topic". Nothing was lost in any of this. Expected: the stream
goes on, and reads a topic that is made again from its start; it stops only for unread messages.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from tests.support.python_client import connected

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.standalone import Standalone

pytestmark = pytest.mark.spark
WAIT_SECONDS = 60.0


def test_a_topic_that_was_read_may_go(
    spark: SparkSession, shared_standalone: Standalone, tmp_path: Path
) -> None:
    prefix = f"going-{uuid.uuid4().hex[:8]}"
    found: list[bytes] = []

    def start(**trigger: Any) -> Any:
        return (
            spark.readStream.format("pulsark")
            .option("serviceUrl", shared_standalone.service_url)
            .option("adminUrl", shared_standalone.web_url)
            .option("topicsPattern", f"{prefix}-.*")
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path))
            .trigger(**trigger)
            .start()
        )

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(bytes(row.value) for row in batch.collect())

    def delete(number: int) -> None:
        path = f"persistent/public/default/{prefix}-{number}?force=true"
        url = f"{shared_standalone.web_url}/admin/v2/{path}"
        urlopen(Request(url, method="DELETE"), timeout=30).close()

    def wait_for(*values: bytes) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while sorted(found) != sorted(values):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    with connected(shared_standalone) as client:

        def send(number: int, value: bytes) -> None:
            producer = client.create_producer(f"{prefix}-{number}")
            producer.send(value)
            producer.close()

        send(1, b"1a")
        send(2, b"2a")
        query = start(processingTime="0 seconds")
        wait_for(b"1a", b"2a")
        delete(1)
        send(2, b"2b")
        send(3, b"3a")
        wait_for(b"1a", b"2a", b"2b", b"3a")
        send(1, b"1b")
        wait_for(b"1a", b"2a", b"2b", b"3a", b"1b")
        query.processAllAvailable()
        query.stop()
        delete(3)  # while no query runs
        send(3, b"3b")
        query = start(availableNow=True)
        query.awaitTermination(int(WAIT_SECONDS))
        assert query.exception() is None
        assert sorted(found) == sorted([b"1a", b"2a", b"2b", b"3a", b"1b", b"3b"])
        send(2, b"lost")
        delete(2)
        query = start(availableNow=True)
        with pytest.raises(Exception, match=rf"{prefix}-2 was deleted: it was read up to"):
            query.awaitTermination(int(WAIT_SECONDS))
