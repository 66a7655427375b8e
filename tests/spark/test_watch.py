"""``pulsark.notebook`` beside a real query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar

from pulsark.notebook import lag, tail, watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_query_and_its_topic(
    spark: SparkSession,
    client: pulsar.Client,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
) -> None:
    addresses = {key: reading[key] for key in ("serviceUrl", "adminUrl")}
    producer = client.create_producer(topic)
    for i in range(25):
        producer.send(b"%d" % i)
    options = {**reading, "startingOffsets": "earliest", "subscription": "watched"}
    frame = spark.readStream.format("pulsark").options(**options, maxRowsPerTrigger="10").load()
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    table = watch(query, interval=0.05, seconds=60)
    assert [row["rows"] for row in table.rows] == [10, 10, 5]
    assert [row["entries behind"] for row in table.rows][-1] == 0
    # The last batch is acknowledged when the run has ended, not when the next one starts.
    (behind,) = lag(topic, **addresses).rows
    assert (behind["subscription"], behind["backlog_entries"]) == ("watched", 0)
    assert [row["value"] for row in tail(topic, 2, **addresses).rows] == [b"23", b"24"]
