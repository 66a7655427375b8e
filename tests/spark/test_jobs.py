"""Jobs as users submit them, and notebooks as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from pulsark.jobs.job import Context
from pulsark.jobs.runner import run_program
from pulsark.jobs.topic_to_delta import JOB
from tests.support.standalone import Standalone
from tests.support.submitted import submitted


def publish(client: pulsar.Client, topic: str, first: int, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(first, first + count):
        producer.send_async(str(number).encode(), None)
    producer.flush()
    producer.close()


def numbers(spark: SparkSession, table: str) -> list[int]:
    rows = spark.read.format("delta").load(table).selectExpr("cast(value as string) v").collect()
    return sorted(int(row["v"]) for row in rows)


def test_topic_to_delta_copies_each_message_once(
    spark: SparkSession,
    broker: Standalone,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = str(tmp_path / "table")

    def copied() -> int:
        assert run_program(JOB, words, Context(JOB.name, given_spark=spark)) == 0
        return int(json.loads(capsys.readouterr().out.splitlines()[-1])["rows"])

    words = ["--topic", topic, "--table", table, "--checkpoint", str(tmp_path / "checkpoint")]
    words += ["--service-url", broker.service_url, "--admin-url", broker.web_url]
    publish(client, topic, 0, 50)
    assert copied() == 50
    assert numbers(spark, table) == list(range(50))
    publish(client, topic, 50, 30)
    assert copied() == 30
    assert copied() == 0
    assert numbers(spark, table) == list(range(80))


@pytest.mark.slow
def test_topic_to_delta_under_spark_submit(
    broker: Standalone, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, 0, 10)
    words = ["--topic", topic, "--table", str(tmp_path / "table")]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    assert submitted("topic_to_delta", broker, *words)["rows"] == 10


def test_a_job_that_fails_in_spark_says_why_in_one_line(
    spark: SparkSession, broker: Standalone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--topic", "nobody-made-it", "--table", str(tmp_path / "table")]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    words += ["--service-url", broker.service_url, "--admin-url", broker.web_url]
    assert run_program(JOB, words, Context(JOB.name, given_spark=spark)) == 1
    said = capsys.readouterr()
    summary = json.loads(said.out.splitlines()[-1])
    assert summary["status"] == "failed"
    assert "nobody-made-it does not exist" in summary["error"]
    assert "Traceback" not in said.err
