"""A user wrote 200 tasks into 16 partitions; the write failed when all of its work was done.

The error was ``413: 3200 files are more than 3000``. Expected: the write succeeds, once and whole.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.standalone import Standalone

PARTITIONS = 64
TASKS = 50
"""3,200 files as well, with fewer processes."""


@pytest.mark.spark
@pytest.mark.strangers  # the tasks sync and verify thousands of files: minutes on a busy machine
@pytest.mark.timeout(1200)
def test_a_write_with_more_files_than_one_publish_may_have(
    spark: SparkSession, shared_standalone: Standalone
) -> None:
    topic = f"many-files-{uuid.uuid4().hex[:8]}"
    broker = {"serviceUrl": shared_standalone.service_url, "adminUrl": shared_standalone.web_url}
    rows = spark.range(0, 20_000, 1, TASKS)
    (
        rows.selectExpr("cast(id AS string) AS value", "concat('k', id) AS key")
        .write.format("pulsark")
        .options(**broker, topic=topic, createTopic="true", numPartitions=str(PARTITIONS))
        .mode("append")
        .save()
    )
    found = spark.read.format("pulsark").options(**broker, valueFormat="string").load(topic)
    assert found.selectExpr("count(*)", "count(DISTINCT value)").first() == (20_000, 20_000)
    assert found.select("partition").distinct().count() == PARTITIONS
