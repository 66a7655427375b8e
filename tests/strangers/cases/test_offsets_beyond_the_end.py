"""A new Spark user began a query at an id of another cluster, and it read nothing, without a word.

``startingOffsets`` with ``99999:0`` on a topic with three messages was accepted. A stream read
nothing of what was published later, and its backlog was 0; a batch left the partition out.
Expected: an error that names the partition, the offset and the real end.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.python_client import connected

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.standalone import Standalone

pytestmark = pytest.mark.spark


def test_offsets_beyond_the_end_are_errors(
    spark: SparkSession, shared_standalone: Standalone, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    topic = f"offsets-{uuid.uuid4().hex[:8]}"
    options: dict[str, Any] = {
        "serviceUrl": shared_standalone.service_url,
        "adminUrl": shared_standalone.web_url,
        "topic": topic,
    }
    with connected(shared_standalone) as client:
        producer = client.create_producer(topic)
        ids = [producer.send(b"m", partition_key=str(number)) for number in range(3)]
    ledger = ids[-1].ledger_id()

    def read(option: str, place: str) -> int:
        offsets = json.dumps({topic: {"-1": place}})
        return spark.read.format("pulsark").options(**options, **{option: offsets}).load().count()

    assert read("startingOffsets", f"{ledger}:2") == 1
    assert read("startingOffsets", f"{ledger}:3") == 0
    for option in ("startingOffsets", "endingOffsets"):
        for place in ("99999:0", f"{ledger}:500"):
            said = f"'{option}': {place} is beyond the end of .*{topic}: .*is {ledger}:2"
            with pytest.raises(PySparkException, match=said):
                read(option, place)
    query = (
        spark.readStream.format("pulsark")
        .options(**options, startingOffsets=json.dumps({topic: {"-1": "99999:0"}}))
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(PySparkException, match=f"99999:0 is beyond the end of .*{topic}"):
        query.awaitTermination(60)
