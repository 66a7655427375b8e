"""How far behind Spark queries are: at the broker, on the command line, and in their progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from pulsark.cli.admin.topics import topic_stats
from tests.support.spark_streams import admin, eventually, publish, stream
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("subscription", ["job", None])
def test_a_query_is_listed_with_its_lag(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    reading: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subscription: str | None,
) -> None:
    topic = f"lag-{subscription}"
    admin(broker, "PUT", f"{topic}/partitions", 2)
    given = {**reading, "topic": topic}
    given |= {} if subscription is None else {"subscription": subscription}
    publish(client, topic, range(10))
    writer = stream(spark, given).writeStream.format("noop").queryName(f"reads {topic}")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 hour")
    query = writer.start()

    flags = "getEarliestTimeInBacklog=true"

    def known() -> list[dict[str, Any]]:
        stats = admin(broker, "GET", f"{topic}/partitioned-stats?{flags}")
        return list(stats.get("sparkQueries", []))

    try:
        eventually(lambda: any("batchId" in found for found in known()), "a batch is finished")
        (found,) = known()
        assert (found["name"], found["id"]) == (f"reads {topic}", query.id)
        assert (found["subscription"], found["batchId"]) == (subscription, 0)
        assert (found["msgBacklog"], found["earliestMsgPublishTimeInBacklog"]) == (0, 0)
        producer = client.create_producer(f"{topic}-partition-1", batching_enabled=False)
        for _ in range(5):
            producer.send(b"later")
        (found,) = known()
        assert found["msgBacklog"] == 5
        assert found["backlogSize"] > 0
        assert found["earliestMsgPublishTimeInBacklog"] > 0
        full = f"persistent://public/default/{topic}"
        listed = AdminClient(broker.web_url).get(f"/spark-queries?{flags}")
        assert {**found, "topics": [full]} in listed
        topic_stats(topic, broker.web_url)
        assert "SPARK QUERY" in capsys.readouterr().out
        progress = query.lastProgress
        assert progress is not None
        behind = json.loads(progress.sources[0].latestOffset)["behind"]
        assert set(behind) == {"entries", "bytes", "minEntries", "avgEntries", "maxEntries"}
        assert set(behind.values()) == {0}
    finally:
        query.stop()
    eventually(lambda: known() == [], "the query is gone")
