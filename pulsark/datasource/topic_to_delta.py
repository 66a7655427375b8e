"""The job that copies a topic into a Delta table, each message once.

``jobs/topic_to_delta.py`` starts it under spark-submit. It runs until what was there at its
start is copied, or for ever with ``--continuous``, and can be killed and started again at any
time: the checkpoint knows what was read, and Delta drops a batch that it has.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pulsark.datasource.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ends the process with usage help if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="topic_to_delta.py", description="Copy a topic into a Delta table, each message once."
    )
    parser.add_argument("--topic", required=True, help="the topic to read")
    parser.add_argument("--table", required=True, help="path or URI of the Delta table")
    parser.add_argument("--checkpoint", required=True, help="where progress is kept")
    parser.add_argument("--subscription", help="durable subscription that follows the job")
    parser.add_argument("--service-url", default="pulsar://localhost:6650")
    parser.add_argument("--admin-url", help="port 8080 of the service URL's host if left out")
    parser.add_argument("--continuous", action="store_true", help="go on until stopped")
    return parser.parse_args(words)


def run(spark: SparkSession, wanted: argparse.Namespace) -> dict[str, Any]:
    """Copy; returns the summary. Raises what made the query fail."""
    options = {
        "serviceUrl": wanted.service_url,
        "topic": wanted.topic,
        "startingOffsets": "earliest",
        **({"adminUrl": wanted.admin_url} if wanted.admin_url else {}),
        **({"subscription": wanted.subscription} if wanted.subscription else {}),
    }
    batches = 0

    def write(batch: DataFrame, batch_id: int) -> None:
        nonlocal batches
        (
            batch.write.format("delta")
            .mode("append")
            .option("txnAppId", f"{wanted.topic} {wanted.checkpoint}")
            .option("txnVersion", batch_id)
            .save(wanted.table)
        )
        batches += 1

    stream = spark.readStream.format("pulsark").options(**options).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", wanted.checkpoint)
    if not wanted.continuous:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    rows = sum(progress.numInputRows for progress in query.recentProgress)
    return {"topic": wanted.topic, "table": wanted.table, "batches": batches, "rows": rows}


def main(words: Sequence[str] | None = None) -> None:
    """Run as a program: the last line on standard output is a JSON summary."""
    wanted = arguments(words)
    spark = session("topic_to_delta")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        print(json.dumps(run(spark, wanted)), flush=True)
    finally:
        spark.stop()
