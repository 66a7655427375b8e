"""A Spark application on topics whose tables are in an object store, and on the disk, too.

It writes a topic, reads it as a batch and as a stream, and seals and replicates by jobs. What it
found is its last line, as JSON. How the store is reached is in its environment.

    python s3_driver.py SERVICE_URL ADMIN_URL [CHECKPOINT]

Without a checkpoint no stream and no past is read.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import expr

from pulsark.jobs.catalog import job
from pulsark.jobs.job import Context
from pulsark.jobs.runner import run_program
from tests.spark.driver_session import driver_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 5000


def copied(spark: SparkSession, where: dict[str, str], checkpoint: str) -> int:
    """Stream a topic into another one; how many messages that has."""
    stream = spark.readStream.format("pulsark").options(**where, topic="from-spark")
    loud = stream.option("startingOffsets", "earliest").load().selectExpr("key", "value")
    query = (
        loud.writeStream.format("pulsark")
        .options(**where, topic="again", createTopic="true", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.format("pulsark").options(**where).load("again").count()


def main(service_url: str, admin_url: str, checkpoint: str = "") -> dict[str, Any]:
    spark = driver_session()
    where = {"serviceUrl": service_url, "adminUrl": admin_url}
    rows = spark.range(ROWS).select(
        expr("concat('k', id % 100) as key"), expr("cast(id as string) as value")
    )
    new = {"topic": "from-spark", "createTopic": "true", "numPartitions": "2"}
    rows.repartition(3).write.format("pulsark").options(**where, **new).mode("append").save()
    read = spark.read.format("pulsark").options(**where)
    found = read.load("from-spark")
    total = found.selectExpr("count(*)", "sum(cast(cast(value as string) as bigint))").first()
    again = past = None
    if checkpoint:
        again = copied(spark, where, checkpoint)
        past = read.option("versionAsOf", "1").load("from-spark").count()
        read = spark.read.format("pulsark").options(**where)
    words = ["--service-url", service_url, "--admin-url", admin_url]
    codes = [
        run_program(job(name), [*more, *words], Context(name, given_spark=spark))
        for name, more in (
            ("seal_ledgers", ["--everything", "--topic", "from-clients"]),
            ("replicate_ledgers", ["--verify"]),
        )
    ]
    tasks = spark.sparkContext.statusTracker()
    return {
        "read": list(total or ()),
        "again": again,
        "clients": read.load("from-clients").count(),
        "past": past,
        "codes": codes,
        "jobs": len(tasks.getJobIdsForGroup(None)),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
