"""A Spark Connect application: writes, reads and streams topics; says what it found as JSON.

Connect and classic sessions do not mix in one process, so the tests start this one.

    python connect_driver.py CHECKPOINT
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import pulsark

QUICK_START = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
ROWS = 90


def of_our_session(checkpoint: str) -> dict[str, Any]:
    """Everything, in a session that has our settings."""
    spark = pulsark.session(remote="local[2]", config=QUICK_START)
    numbers = spark.range(ROWS).selectExpr("concat('k', id % 3) as key", "string(id) as value")
    writer = numbers.write.format("pulsark").option("topic", "connect-in")
    writer.option("createTopic", "true").mode("append").save()
    query = (
        spark.readStream.format("pulsark")
        .options(subscription="connect", startingOffsets="earliest", maxRowsPerTrigger="40")
        .load("connect-in")
        .select("key", "value")
        .writeStream.format("pulsark")
        .options(topic="connect-out", createTopic="true", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    pulsark.register_topics(spark)
    backlog = spark.sql(
        "SELECT backlog_entries FROM pulsark_backlog WHERE subscription = 'connect'"
    )
    pushing = spark.read.format("pulsark").option("pushdown", "true").load("connect-out")
    found = {
        "kind": type(spark).__module__,
        "batches": [progress.numInputRows for progress in query.recentProgress],
        "backlog": [row[0] for row in backlog.collect()],
        "sql": [tuple(row) for row in spark.sql("SELECT count(DISTINCT value) FROM `connect-out`")
                .collect()],
        "pushdown": pushing.where("key = 'k1'").count(),
        "error": error_of(spark),
    }  # fmt: skip
    spark.stop()
    return found


def of_a_plain_session() -> dict[str, Any]:
    """A session that knows nothing of us finds the format by the name of its package."""
    builder: Any = SparkSession.builder
    for key, value in QUICK_START.items():
        builder = builder.config(key, value)
    spark = builder.remote("local[2]").getOrCreate()
    rows = spark.read.format("pulsark").option("columns", "value").load("connect-out").collect()
    spark.stop()
    return {"values": sorted(int(row.value) for row in rows)}


def error_of(spark: SparkSession) -> str:
    """What somebody reads who has mistyped an option."""
    try:
        spark.read.format("pulsark").option("topcs", "connect-in").load().collect()
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    (checkpoint,) = sys.argv[1:]
    print(json.dumps({"ours": of_our_session(checkpoint), "plain": of_a_plain_session()}))
