"""A new Spark user wrote rows larger than maxMessageSize, and no Java client got past them.

The broker published a row of 5.3 MB, although it takes 5 MiB from producers. A consumer of the
official Java client dropped its connection at that message for ever, with all its other topics.
Expected: the write fails before anything is published, and names the row and the limit.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.standalone import Standalone

pytestmark = pytest.mark.spark


def test_a_row_larger_than_messages_may_be_is_refused(
    spark: SparkSession, shared_standalone: Standalone
) -> None:
    from pyspark.errors import PySparkException

    topic = f"large-{uuid.uuid4().hex[:8]}"

    def write(size: int, delivery: str) -> None:
        rows = spark.sql(f"SELECT 'small' AS value UNION ALL SELECT repeat('x', {size}) AS value")
        rows.coalesce(1).write.format("pulsark").options(
            serviceUrl=shared_standalone.service_url,
            adminUrl=shared_standalone.web_url,
            topic=topic,
            createTopic="true",
            delivery=delivery,
        ).mode("append").save()

    said = {"exactly-once": r"of its batch\) makes a message of 53.* takes 5242880 at most"}
    for delivery in ("exactly-once", "at-least-once"):
        with pytest.raises(PySparkException, match=said.get(delivery, "maxMessageSize")):
            write(5_300_000, delivery)
    write(5_000_000, "exactly-once")
