"""Topics published, streamed into files and looked at, as the tests of streams do."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar

from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_SECONDS = 60.0


def admin(broker: Standalone, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{broker.web_url}/admin/v2/persistent/public/default/{path}",
        json.dumps(body).encode() if body is not None else None,
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request) as response:
        text = response.read()
    return json.loads(text) if text else None


def backlog(broker: Standalone, topic: str, subscription: str) -> int:
    """-1 as long as there is no such subscription."""
    found = admin(broker, "GET", f"{topic}/stats")["subscriptions"].get(subscription)
    return -1 if found is None else int(found["msgBacklog"])


def eventually(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
        threading.Event().wait(0.05)


def publish(client: pulsar.Client, topic: str, values: range) -> None:
    producer = client.create_producer(topic)
    for value in values:
        producer.send_async(b"%d" % value, lambda result, _: None)
    producer.flush()
    producer.close()


def stream(spark: SparkSession, reading: dict[str, Any], **more: Any) -> DataFrame:
    options = {"startingOffsets": "earliest", "columns": "value,partition", **reading, **more}
    return spark.readStream.format("pulsark").options(**options).load()


def run_available(frame: DataFrame, sink: Path, checkpoint: Path) -> int:
    """Run to the end of the topic as of now; how many batches that took."""
    query = (
        frame.selectExpr("cast(cast(value as string) as int) n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(sink))
    )
    assert query.awaitTermination(int(WAIT_SECONDS))
    return len([progress for progress in query.recentProgress if progress.numInputRows])


def numbers(spark: SparkSession, sink: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(sink)).collect())
