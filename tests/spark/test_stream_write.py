"""``df.writeStream``: each row once, whatever is killed, and whatever Spark runs again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.spark.test_write import received
from tests.spark.write_driver import StoppingSource
from tests.support.process_tree import kill_tree
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("write_driver.py")
STEP_SECONDS = 240.0
STARTS_MAX = 3


def publish(client: pulsar.Client, topic: str, first: int, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=20)
    for number in range(first, first + count):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 9}")
    producer.flush()
    producer.close()


@pytest.fixture
def stream(
    spark: SparkSession, writing: dict[str, Any], topic: str, tmp_path: Path
) -> Callable[..., None]:
    """Write what the source has now, and wait for the end."""

    def run(format: str = "pulsark", **options: Any) -> None:
        frame = (
            spark.readStream.format("pulsark")
            .options(**writing, topic=f"{topic}-source", startingOffsets="earliest")
            .options(columns="value,key", maxRowsPerTrigger=50)
            .load()
        )
        sink = {"topic": f"{topic}-sink", "createTopic": "true", **options}
        query = (
            frame.writeStream.format(format)
            .options(**writing, **sink, checkpointLocation=str(tmp_path / "checkpoint"))
            .queryName("q")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    return run


def test_batches_become_messages_and_one_that_runs_again_does_not(
    client: pulsar.Client, stream: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    publish(client, f"{topic}-source", 0, 130)
    stream()
    assert len(received(client, f"{topic}-sink", 130)) == 130
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    assert len(commits) == 3
    # Spark takes the last batch for one that was not committed, and runs it again.
    commits[-1].unlink()
    for left in (tmp_path / "checkpoint" / "commits").glob(f".{commits[-1].name}.*"):
        left.unlink()
    publish(client, f"{topic}-source", 130, 10)
    stream()
    found = received(client, f"{topic}-sink", 140, "again")
    assert Counter(int(m.data()) for m in found) == Counter(range(140))
    assert {m.partition_key() for m in found} == {f"k{n}" for n in range(9)}


def test_a_consumer_that_is_connected_gets_each_batch(
    client: pulsar.Client, stream: Callable[..., None], topic: str
) -> None:
    consumer = client.subscribe(f"{topic}-sink", "s")
    publish(client, f"{topic}-source", 0, 60)
    stream()
    assert [int(consumer.receive(5000).data()) for _ in range(60)] == list(range(60))
    consumer.close()


def test_what_a_stream_cannot_do_is_said(
    client: pulsar.Client, stream: Callable[..., None], topic: str
) -> None:
    publish(client, f"{topic}-source", 0, 1)
    for options, message in (
        ({"txnAppId": "a", "txnVersion": 1}, "txnAppId"),
        ({"tpoic": "x"}, "did you mean 'topic'"),
    ):
        with pytest.raises(Exception, match=message):
            stream(**options)


def check_once(client: pulsar.Client, topic: str, count: int) -> None:
    """Each row is there once, those of a key in their order."""
    found = received(client, topic, count)
    assert Counter(int(m.data()) for m in found) == Counter(range(count))
    by_key: dict[str, list[int]] = {}
    for message in found:
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_each_row_is_there_once_whatever_step_a_batch_ends_at(
    spark: SparkSession, client: pulsar.Client, stream: Callable[..., None], topic: str
) -> None:
    spark.dataSource.register(StoppingSource)
    publish(client, f"{topic}-source", 0, 150)
    for step in ("writing", "written", "committing", "published"):
        with pytest.raises(Exception, match=f"stopped: {step}"):
            stream(format="stopping", stopAt=step, numPartitions=3)
    stream(format="stopping", stopAt="never", numPartitions=3)
    check_once(client, f"{topic}-sink", 150)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_each_row_is_there_once_though_the_driver_is_killed(
    client: pulsar.Client, broker: Standalone, topic: str, tmp_path: Path
) -> None:
    """Each step as above, but the processes die; in every run the chain of kills has some of it."""
    publish(client, f"{topic}-source", 0, 300)
    for step in ("writing", "written", "aborting", "committing", "published", "never"):
        run_driver(broker, topic, tmp_path, step)
    check_once(client, f"{topic}-sink", 300)


def run_driver(broker: Standalone, topic: str, tmp_path: Path, step: str) -> None:
    """Run it to a step and kill it there, or to its end."""
    for _ in range(STARTS_MAX):
        log = tmp_path / f"{step}.log"
        if run_once(broker, topic, tmp_path, step, log):
            return
        # Spark gives its workers ten seconds to start, which a busy machine may not keep.
        assert "Python worker failed to connect back" in log.read_text(), log.read_text()[-3000:]
    pytest.fail(f"Spark's workers did not start {STARTS_MAX} times")


def run_once(broker: Standalone, topic: str, tmp_path: Path, step: str, log: Path) -> bool:
    """False if the driver ended before."""
    marker = tmp_path / f"reached-{step}"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                sys.executable, str(DRIVER), broker.service_url, broker.web_url, f"{topic}-source",
                f"{topic}-sink", str(tmp_path / "checkpoint"), step, str(marker),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=output,
        )  # fmt: skip
    try:
        if step == "never":
            return process.wait(STEP_SECONDS) == 0
        until = time.monotonic() + STEP_SECONDS
        while not marker.exists():
            if process.poll() is not None:
                return False
            assert time.monotonic() < until, f"the driver does not come to {step}"
            time.sleep(0.05)
        return True
    finally:
        if process.poll() is None:
            kill_tree(process.pid)
        process.wait()
