"""What a query logs in with is shown nowhere: no plan, checkpoint, progress, error or log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import PySparkException

from tests.support.spark_streams import numbers, publish, run_available

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CANARY = "canary-5521"
LOGIN = {"authPluginClassName": "token", "authParams": f"token:{CANARY}"}


def plans(frame: DataFrame) -> str:
    """Everything that ``explain`` has."""
    execution = frame._jdf.queryExecution()
    return "\n".join((execution.toString(), execution.stringWithStats(), execution.simpleString()))


def test_a_secret_is_in_no_plan_checkpoint_or_progress(
    spark: SparkSession,
    client: pulsar.Client,
    topic: str,
    reading: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    publish(client, topic, range(10))
    batch = spark.read.format("pulsark").options(**reading, **LOGIN).load()
    assert batch.count() == 10
    assert "pulsark" in plans(batch)
    assert CANARY not in plans(batch)
    following = spark.readStream.format("pulsark").option("startingOffsets", "earliest")
    frame = following.options(**reading, **LOGIN).load()
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    run_available(frame, sink, checkpoint)
    assert numbers(spark, sink) == list(range(10))
    kept = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if CANARY.encode() in path.read_bytes()]
    wrong = {**reading, "adminUrl": "http://localhost:1"}
    unreachable = spark.read.format("pulsark").options(**wrong, **LOGIN)
    with pytest.raises(PySparkException) as caught:
        unreachable.load().count()
    assert "no answer" in str(caught.value)
    assert CANARY not in str(caught.value)
    said = capfd.readouterr()
    assert CANARY not in said.out + said.err


def test_a_secret_of_a_write_is_in_no_plan(
    spark: SparkSession, writing: dict[str, Any], topic: str
) -> None:
    rows = spark.createDataFrame([(b"one",)], "value binary")
    target = rows.write.format("pulsark").options(**writing, **LOGIN)
    target.option("createTopic", "true").option("topic", topic).mode("append").save()
    options = {**writing, **LOGIN, "topic": topic}
    assert spark.read.format("pulsark").options(**options).load().count() == 1
