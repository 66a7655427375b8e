"""The streaming query: departures and delays by carrier and day, kept up to date."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.flights.flights import TIME_ZONE, Answer, Delays

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUBSCRIPTION = "delays-by-day"
_RESULT = "delays"
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def start_spark(directory: Path, log: Path) -> SparkSession:
    """A session whose JVM writes into ``log`` and not into the middle of the progress bars."""
    import pulsark

    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING)
    with _stderr_to(log):
        return pulsark.session(
            "pulsark-demo",
            master="local[2]",
            config={
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.session.timeZone": TIME_ZONE,
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging}",
            },
        )


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes started inside inherit the file as their standard error."""
    kept = os.dup(2)
    with log.open("ab") as output:
        os.dup2(output.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def delays_by_day(spark: SparkSession, service_url: str, admin_url: str, topic: str) -> DataFrame:
    """The aggregate as a streaming DataFrame."""
    from pyspark.sql import functions as f

    flight = "carrier STRING, flight INT, dep_delay INT, arr_delay INT"
    return (
        spark.readStream.format("pulsark")
        .option("serviceUrl", service_url)
        .option("adminUrl", admin_url)
        .option("topic", topic)
        .option("subscription", SUBSCRIPTION)
        .option("startingOffsets", "earliest")
        .option("columns", "value,event_time")
        .load()
        .select(
            f.from_json(f.col("value").cast("string"), flight).alias("flight"),
            f.to_date("event_time").cast("string").alias("day"),
        )
        .groupBy(f.col("flight.carrier").alias("carrier"), "day")
        .agg(
            f.count("*").alias("scheduled"),
            f.count("flight.dep_delay").alias("departed"),
            f.coalesce(f.sum("flight.dep_delay"), f.lit(0)).alias("departure_delay"),
            f.count("flight.arr_delay").alias("arrived"),
            f.coalesce(f.sum("flight.arr_delay"), f.lit(0)).alias("arrival_delay"),
        )
    )


class RunningQuery:
    """The query with its result in memory, and how many rows it has read."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self._spark = frame.sparkSession
        self._rows_by_batch: dict[int, int] = {}
        self._query = (
            frame.writeStream.format("memory")
            .queryName(_RESULT)
            .outputMode("complete")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def rows(self) -> int:
        """Rows read by the batches that have ended; raises if the query has failed."""
        problem = self._query.exception()
        if problem is not None:
            raise problem
        for progress in self._query.recentProgress:
            self._rows_by_batch[progress.batchId] = progress.numInputRows
        return sum(self._rows_by_batch.values())

    def finish(self) -> Answer:
        """Wait until everything published is in the result; then stop and return it."""
        self._query.processAllAvailable()
        rows: list[Any] = self._spark.table(_RESULT).collect()
        self._query.stop()
        return {(row.carrier, row.day): Delays(*row[2:]) for row in rows}
