"""The job that seals, on a real Spark: the same contract as the broker's own process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.seal_contract import (
    BOOKIES,
    SETTINGS,
    publish,
    rows,
    run_job,
    seals_every_message_once_on_every_root,
    tables,
)
from tests.support.standalone import Standalone

ENV = {**SETTINGS, "PULSARK_sealByJobs": "true"}


def test_the_job_seals(spark: SparkSession, tmp_path: Path) -> None:
    def seal(broker: Standalone, topic: str) -> None:
        assert run_job(broker, topic, spark) == 0

    with Standalone(tmp_path / "data", *BOOKIES, env=ENV) as broker:
        seals_every_message_once_on_every_root(broker, seal)
        for table in tables(broker):
            assert spark.read.format("delta").load(str(table)).count() == 310


def test_one_job_for_many_topics(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Standalone(tmp_path / "data", *BOOKIES, env=ENV) as broker:
        for i in range(20):
            publish(broker, f"t{i}", 0, 5)
        before = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
        assert run_job(broker, "", spark) == 0
        after = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
        assert len(set(after) - set(before)) == 1
        # One task for each storage root: they have little to do.
        assert '"tables": 20, "tasks": 3, "files": 20, "rows": 100' in capsys.readouterr().out
        assert [rows(table) for table in tables(broker)] == [5] * 60
