"""The job that erases messages, and what official clients, Spark and the disk have afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession

from pulsark.admin_client.client import AdminClient
from pulsark.cli.admin.topics import compact_topic
from pulsark.jobs.catalog import job
from pulsark.jobs.erase_messages import JOB
from pulsark.jobs.job import Context
from pulsark.jobs.runner import run_program
from tests.support.python_client import connect
from tests.support.standalone import Standalone

SETTINGS = {
    "PULSARK_acknowledgmentAtBatchIndexLevelEnabled": "true",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "20",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
SECRET = b"alice@example.org"
WAIT_MS = 5000


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("erase") / "data", env=SETTINGS) as process:
        yield process


def run(
    spark: SparkSession,
    standalone: Standalone,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    code: int = 0,
) -> dict[str, Any]:
    where = ["--service-url", standalone.service_url, "--admin-url", standalone.web_url]
    found = run_program(JOB, [*words, *where], Context(JOB.name, given_spark=spark))
    said = capsys.readouterr()
    assert found == code, said
    summary: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    return summary


def publish(client: pulsar.Client, topic: str, count: int, *, batched: bool) -> None:
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_messages=5)
    for i in range(count):
        alice = i % 4 == 1
        value = (SECRET if alice else b"somebody else") + b" %d" % i
        producer.send_async(
            value,
            lambda *_: None,
            partition_key="alice" if alice else f"k{i % 3}",
            properties={"mail": value.decode()},
        )
    producer.flush()
    producer.close()


def everything(client: pulsar.Client, topic: str) -> list[tuple[str, str, bytes]]:
    """Id, key and value of each message that a reader gets."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        found.append((str(message.message_id()), message.partition_key(), message.data()))
    reader.close()
    return found


def compacted(client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    """Key and value of each message that a reader of the compacted topic gets."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def table_of(standalone: Standalone) -> list[Path]:
    return [path.parent for path in standalone.data_dir.rglob("_delta_log")]


def files_with(standalone: Standalone, words: bytes) -> list[Path]:
    return [
        path
        for path in standalone.data_dir.rglob("*")
        if path.is_file() and words in path.read_bytes()
    ]


@pytest.mark.feature("F53")
@pytest.mark.parametrize("batched", [False, True])
def test_messages_of_one_key(
    spark: SparkSession,
    standalone: Standalone,
    capsys: pytest.CaptureFixture[str],
    batched: bool,
) -> None:
    topic = f"persistent://public/default/erased-{batched}"
    client = connect(standalone)
    publish(client, topic, 50, batched=batched)
    before = everything(client, topic)
    assert len(before) == 50
    consumer = client.subscribe(
        topic,
        "later",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )
    consumer.close()
    words = ["--topic", topic, "--where", "key = 'alice'"]
    counted = run(spark, standalone, capsys, *words, "--dry-run")
    alices = sum(key == "alice" for _, key, _ in before)
    assert (counted["messages"], counted["dryRun"]) == (alices, True)
    assert everything(client, topic) == before
    assert files_with(standalone, SECRET)

    done = run(spark, standalone, capsys, *words, "--vacuum-hours", "0")
    assert (done["messages"], done["missing"]) == (alices, 0)
    held = done["stillHeld"]
    assert (held["oldTableFiles"], held["journalSegments"]) == (0, 0)
    assert held["deletedTableFiles"] > 0
    left = [message for message in before if message[1] != "alice"]
    assert everything(client, topic) == left
    assert files_with(standalone, SECRET) == []
    assert all("alice" not in _keys(spark, str(table)) for table in table_of(standalone))

    consumer = client.subscribe(
        topic,
        "later",
        consumer_type=pulsar.ConsumerType.Shared,
        batch_index_ack_enabled=True,
    )
    received = []
    for _ in left:
        message = consumer.receive(WAIT_MS)
        received.append((str(message.message_id()), message.partition_key(), message.data()))
        consumer.acknowledge(message)
    assert sorted(received) == sorted(left)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(2000)  # meanwhile acknowledgements become durable
    consumer.close()
    client.close()

    standalone.kill()
    standalone.start()
    client = connect(standalone)
    assert everything(client, topic) == left
    consumer = client.subscribe(topic, "later", consumer_type=pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    consumer.close()
    client.close()
    again = run(spark, standalone, capsys, *words)
    assert (again["messages"], again["files"]) == (0, 0)


def _keys(spark: SparkSession, table: str) -> set[str]:
    rows = spark.read.format("delta").load(table).select("key").distinct().collect()
    return {row["key"] for row in rows}


@pytest.mark.feature("F91")
def test_messages_that_only_the_compacted_topic_has(
    spark: SparkSession, standalone: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "persistent://public/default/erased-compacted"
    client, admin = connect(standalone), AdminClient(standalone.web_url)
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(20):
        producer.send(b"carol" if i == 7 else b"v%d" % i, partition_key=f"k{i}")
    producer.send(b"", partition_key="nobody")  # the ledger before it is closed
    compact_topic(topic, admin_url=standalone.web_url)
    for path in ("retention", "tableRetention"):
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        admin.call("POST", f"/persistent/public/default/erased-compacted/{path}", nothing)
    where = ["--service-url", standalone.service_url, "--admin-url", standalone.web_url]
    deadline = time.monotonic() + 30
    while len(everything(client, topic)) > 1:  # until that is durably acknowledged
        assert run_program(job("apply_retention"), ["--topic", topic, *where]) == 0
        assert time.monotonic() < deadline
        time.sleep(0.2)
    capsys.readouterr()
    assert ("k7", b"carol") in compacted(client, topic)
    words = ["--topic", topic, "--where", "key = 'k7'"]
    assert run(spark, standalone, capsys, *words, "--dry-run")["messages"] == 1
    done = run(spark, standalone, capsys, *words, "--vacuum-hours", "0")
    assert (done["messages"], done["missing"]) == (1, 0)
    assert compacted(client, topic) == [(f"k{i}", b"v%d" % i) for i in range(20) if i != 7]
    assert files_with(standalone, b"carol") == []
    client.close()


def test_partitions_and_conditions_on_anything(
    spark: SparkSession, standalone: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "persistent://public/default/erased-partitions"
    AdminClient(standalone.web_url).call(
        "PUT", "/persistent/public/default/erased-partitions/partitions", 2
    )
    client = connect(standalone)
    publish(client, topic, 40, batched=True)
    where = "properties['mail'] like 'alice%' and cast(value as string) not like '% 5'"
    done = run(spark, standalone, capsys, "--topic", topic, "--where", where)
    assert done["messages"] == 9
    assert done["stillHeld"]["oldTableFiles"] > 0
    assert done["stillHeld"]["oldTableFilesUntil"] is not None
    found = [m for i in (0, 1) for m in everything(client, f"{topic}-partition-{i}")]
    assert [value for _, key, value in found if key == "alice"] == [SECRET + b" 5"]
    assert len(found) == 31
    client.close()


def test_a_condition_that_is_none_is_said_in_one_line(
    spark: SparkSession, standalone: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    client = connect(standalone)
    publish(client, "wrong-where", 1, batched=False)
    client.close()
    words = ["--topic", "wrong-where", "--where"]
    failed = run(spark, standalone, capsys, *words, "kee = 'x'", code=1)
    assert "kee" in failed["error"]
    assert "\n" not in failed["error"]
    assert "--where is empty" in run(spark, standalone, capsys, *words, " ", code=2)["error"]
    nobody = ["--topic", "nobody-made-it", "--where", "key = 'x'"]
    missing = run(spark, standalone, capsys, *nobody, code=1)
    assert "does not exist" in missing["error"]
