"""A Spark application that streams a topic into a Delta table; the tests kill and restart it.

It says on standard output what it is about to do: ``started``, ``writing N``, ``wrote N``. The
format is found by the name of the package alone: nothing here registers it.

    python stream_driver.py SERVICE_URL ADMIN_URL TOPIC SUBSCRIPTION SINK CHECKPOINT
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from pulsark.datasource.session import session_settings

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It lives for seconds: compiling well costs more than it gains."""


def say(*words: object) -> None:
    """One line to the test, at once."""
    print(*words, flush=True)


def main(service_url: str, admin_url: str, topic: str, name: str, sink: str, place: str) -> None:
    """Run until killed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in session_settings().items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.extraJavaOptions", QUICK_START)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def write(batch: Any, batch_id: int) -> None:
        say("writing", batch_id)
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", name).option("txnVersion", batch_id).save(sink)
        say("wrote", batch_id)

    frame = (
        spark.readStream.format("pulsark")
        .options(serviceUrl=service_url, adminUrl=admin_url, topic=topic)
        .options(subscription=name, startingOffsets="earliest")
        .options(columns="value,message_id", minPartitions="6")
        .load()
        .selectExpr(
            "split(cast(value as string), ':')[0] as producer",
            "cast(split(cast(value as string), ':')[1] as int) as seq",
            "message_id",
        )
    )
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", place).start()
    say("started")
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
