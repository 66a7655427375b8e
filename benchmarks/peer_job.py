"""A Spark job that brings a topic of Apache Pulsar into a Delta table with Pulsar's own client.

    python -m benchmarks.peer_job CORES JARS

Spark 4 has no source for Pulsar, so it is a job as one would write it: the official Python client
receives what is there, Spark appends it, the messages are acknowledged, and the next round begins
at once. The appends carry a transaction id, as is needed to write no batch twice. The session is
Spark's own, with Delta as Delta's documentation says. Lines of JSON on standard input say what to
do: ``{"url", "topic", "table"}`` begins, ``{}`` ends; each is answered by a line.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pulsar
import pyarrow as pa
from pyspark.sql import SparkSession

RECEIVED_MAX = 100_000
"""Messages of a round, in the client's queue and out of it."""
WAIT_MS = 10
SCHEMA = pa.schema(
    [("key", pa.string()), ("event_time", pa.timestamp("us", "UTC")), ("value", pa.binary())]
)


class Job:
    """A thread that receives and appends."""

    def __init__(self, spark: SparkSession, url: str, topic: str, table: str) -> None:
        self._spark = spark
        self._topic = topic
        self._table = table
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(url, logger=logger)
        self._consumer = self._client.subscribe(
            topic,
            "spark",
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=RECEIVED_MAX,
            batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(RECEIVED_MAX, -1, WAIT_MS),
        )
        self._ended = threading.Event()
        self._error = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            version = 0
            while not self._ended.is_set():
                messages = self._consumer.batch_receive()
                if messages:
                    self._append(messages, version)
                    self._consumer.acknowledge_cumulative(messages[-1])
                    version += 1
        except BaseException as error:  # the thread's; told when it ends
            self._error = repr(error)

    def _append(self, messages: list[Any], version: int) -> None:
        times = pa.array([each.event_timestamp() for each in messages], pa.int64())
        columns = [
            pa.array([each.partition_key() for each in messages], pa.string()),
            times.cast(pa.timestamp("ms", "UTC")).cast(SCHEMA.field(1).type),
            pa.array([each.data() for each in messages], pa.binary()),
        ]
        (
            self._spark.createDataFrame(pa.Table.from_arrays(columns, schema=SCHEMA))
            .write.format("delta")
            .mode("append")
            .option("txnAppId", self._topic)
            .option("txnVersion", version)
            .save(self._table)
        )

    def end(self) -> str:
        """Stop; what went wrong."""
        self._ended.set()
        self._thread.join()
        self._client.close()
        return self._error


def main() -> None:
    """Serve standard input."""
    cores, jars = sys.argv[1:]
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    job: Job | None = None
    for line in sys.stdin:
        wanted = json.loads(line)
        error = job.end() if job is not None else ""
        job = Job(spark, **wanted) if wanted else None
        print(json.dumps({"error": error}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
