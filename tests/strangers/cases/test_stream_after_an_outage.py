"""A user's broker was away for 5 s; the running query saw new data 61 s after it was back.

After 15 s it saw nothing for minutes, and ``processAllAvailable()`` returned with half the data.
Expected: new data within 2 s, however long the outage, and no call that returns too early.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.python_client import connected
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTAGE_SECONDS = 6.0
SEEN_WITHIN_SECONDS = 2.0
BATCH_SECONDS = 8.0
"""What Spark may take for a batch, with new worker processes, on a busy machine."""

ROWS = 100


def publish(broker: Standalone, texts: range) -> None:
    with connected(broker) as client:
        producer = client.create_producer("outage")
        for number in texts:
            producer.send_async(str(number).encode(), None)
        producer.flush()


@pytest.mark.spark
@pytest.mark.parametrize(
    "outage_s", [OUTAGE_SECONDS, pytest.param(60.0, marks=pytest.mark.strangers)]
)
def test_a_running_query_sees_new_data_at_once(
    spark: SparkSession, tmp_path: Path, outage_s: float
) -> None:
    got: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        got.extend(int(bytes(row.value)) for row in batch.select("value").collect())

    with Standalone(tmp_path / "data") as broker:
        publish(broker, range(ROWS))
        query = (
            spark.readStream.format("pulsark")
            .options(serviceUrl=broker.service_url, adminUrl=broker.web_url, topic="outage")
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
            assert sorted(got) == list(range(ROWS))
            broker.kill()
            time.sleep(outage_s)
            broker.start()
            publish(broker, range(ROWS, 2 * ROWS))
            began = time.monotonic()
            query.processAllAvailable()
            took_s = time.monotonic() - began
            assert sorted(got) == list(range(2 * ROWS))
            assert took_s < SEEN_WITHIN_SECONDS + BATCH_SECONDS
        finally:
            query.stop()
