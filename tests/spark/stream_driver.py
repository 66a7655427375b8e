"""A Spark application that streams a topic into a Delta table; the tests kill and restart it.

It says on standard output what it is about to do: ``started``, ``writing N``, ``wrote N``. The
format is found by the name of the package alone: nothing here registers it.

    python stream_driver.py SERVICE_URL ADMIN_URL TOPIC SUBSCRIPTION SINK CHECKPOINT
"""

from __future__ import annotations

import sys
from typing import Any

from tests.spark.driver_session import driver_session


def say(*words: object) -> None:
    """One line to the test, at once."""
    print(*words, flush=True)


def main(service_url: str, admin_url: str, topic: str, name: str, sink: str, place: str) -> None:
    """Run until killed."""
    spark = driver_session(**{"spark.sql.shuffle.partitions": "2"})

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
