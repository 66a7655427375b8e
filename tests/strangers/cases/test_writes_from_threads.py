"""A new Spark user wrote to several topics from a pool of threads, and Spark knew no such format.

Every thread but the main one got ``DATA_SOURCE_NOT_FOUND``, and the documentation blamed
``PYSPARK_PYTHON``. Spark looks for a write's format in the session that is active in the thread.
Expected: a way to do it, and a page that names it.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import pulsark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.standalone import Standalone

pytestmark = pytest.mark.spark
TOPICS = 4


def test_threads_write_once_they_have_the_session(
    spark: SparkSession, shared_standalone: Standalone
) -> None:
    from py4j.protocol import Py4JJavaError

    prefix = f"threads-{uuid.uuid4().hex[:8]}"
    broker = {
        "serviceUrl": shared_standalone.service_url,
        "adminUrl": shared_standalone.web_url,
    }

    def write(number: int) -> None:
        options = {**broker, "topic": f"{prefix}-{number}", "createTopic": "true"}
        rows = spark.range(5).selectExpr("cast(id AS string) AS value")
        rows.write.format("pulsark").options(**options).mode("append").save()

    def written() -> int:
        pattern = {**broker, "topicsPattern": f"{prefix}-.*"}
        return spark.read.format("pulsark").options(**pattern).load().count()

    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    with ThreadPoolExecutor(2, initializer=pulsark.session) as threads:
        list(threads.map(write, range(TOPICS)))
    assert written() == 5 * TOPICS
    assert spark.conf.get("spark.sql.shuffle.partitions") == partitions

    def activate() -> None:
        spark.createDataFrame([], "a int")

    with ThreadPoolExecutor(1, initializer=activate) as threads:
        list(threads.map(write, range(TOPICS)))
    assert written() == 10 * TOPICS
    # If this fails, Spark finds the format in any thread: the page can be shortened.
    with ThreadPoolExecutor(1) as threads:
        failed = threads.submit(write, 0)
    with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        failed.result()
