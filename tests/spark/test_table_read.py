"""Spark reads the table of a topic as any other Delta table, and topics from the table's files."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from chispa import assert_df_equality

from tests.support.protobuf_messages import (
    INT32,
    STRING,
    F,
    ProtobufSchema,
    class_of,
    entry,
    file,
    many,
    message,
    native,
    one,
)
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.tables import NOW, GrowingTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_reads_a_table_with_plain_delta(spark: SparkSession, tmp_path: Path) -> None:
    table = GrowingTable(tmp_path)
    table.attach(0, 5, 0, 10)
    table.attach(1, 7, 0, 20)
    rows = spark.read.format("delta").load(table.directory)
    assert rows.count() == 60
    assert rows.where("ledger_id = 7 AND partition = 1").count() == 40
    assert rows.where(f"publish_time = timestamp_millis({NOW + 3})").count() == 4
    first = rows.where("ledger_id = 5 AND entry_id = 3 AND batch_index = 1").first()
    assert first is not None
    assert (first["key"], bytes(first["value"]), first["properties"]) == (
        "k1", b"value 3.1", {"n": "3"},
    )  # fmt: skip
    table.remove(5)
    assert spark.read.format("delta").load(table.directory).count() == 40


def test_spark_reads_a_table_whose_old_commits_were_folded(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = GrowingTable(tmp_path)
    for ledger_id in range(5, 10):
        table.attach(0, ledger_id, 0, 10)
    table.fold(3)
    assert spark.read.format("delta").load(table.directory).count() == 100
    old = spark.read.format("delta").option("versionAsOf", 4).load(table.directory)
    assert old.count() == 80
    with pytest.raises(Exception, match=r"versions: \[3, 5\]"):
        spark.read.format("delta").option("versionAsOf", 2).load(table.directory).count()
    table.attach(0, 10, 0, 10)
    assert spark.read.format("delta").load(table.directory).count() == 120


SEALING = {
    "PULSARK_sealEnabled": "true",
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "60",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
SEALED_WITHIN_SECONDS = 60.0


@pytest.fixture(scope="module")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("sealing") / "data", env=SEALING) as broker:
        yield broker


def publish(producer: pulsar.Producer, values: range) -> None:
    for value in values:
        producer.send_async(
            b"%d" % value,
            lambda result, _: None,
            partition_key=f"k{value % 7}",
            event_timestamp=1_700_000_000_000 + value,
        )
    producer.flush()


def admin(broker: Standalone, path: str, method: str = "GET", body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{broker.web_url}/admin/v2/persistent/public/default/{path}",
        json.dumps(body).encode() if body is not None else None,
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request) as response:
        text = response.read()
    return json.loads(text) if text else None


def sealed_rows(broker: Standalone, topic: str) -> int:
    answer = admin(broker, f"{topic}/tableFiles")
    return sum(
        file["rows"]
        for partition in answer["partitions"]
        for ledger in partition["ledgers"]
        for file in ledger["files"]
    )


def test_reads_are_whole_while_messages_come_and_are_sealed(
    spark: SparkSession, sealing: Standalone, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin(sealing, f"{topic}/partitions", "PUT", 2)
    reader = spark.read.format("pulsark").options(
        serviceUrl=sealing.service_url, adminUrl=sealing.web_url, topic=topic
    )
    columns = "partition,ledger_id,entry_id,batch_index,key,value,publish_time,event_time"
    reader = reader.option("columns", columns)
    done, total = 0, 6000
    with connected(sealing) as client:
        producer = client.create_producer(
            topic,
            batching_max_messages=20,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        for end in range(1000, total + 1, 1000):
            publish(producer, range(end - 1000, end))
            frame = reader.load()  # a DataFrame stays as it was when it was used first
            rows = frame.selectExpr("cast(cast(value as string) as int) n").collect()
            assert sorted(row.n for row in rows) == list(range(end))
            done = end
    assert done == total
    deadline = time.monotonic() + SEALED_WITHIN_SECONDS
    while sealed_rows(sealing, topic) < total:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    order = ("partition", "ledger_id", "entry_id", "batch_index")
    from_files = reader.load().orderBy(*order)
    rows = from_files.collect()
    assert sorted(int(row.value) for row in rows) == list(range(total))
    asked = reader.option("readTableFiles", "false").load()
    assert_df_equality(asked.orderBy(*order), from_files)

    wanted = (
        reader.options(pushdown="true", readTableFiles="true")
        .load()
        .where("key = 'k3' AND partition = 1 AND event_time >= timestamp_millis(1700000003000)")
    )
    wanted.explain("formatted")
    plan = capsys.readouterr().out
    assert "EqualTo(partition,1), GreaterThanOrEqual(event_time" in plan
    assert "* Filter" not in plan  # nothing is left to Spark
    expected = {
        int(row.value)
        for row in rows
        if (row.key, row.partition) == ("k3", 1) and int(row.value) >= 3000
    }
    assert expected
    assert {int(row.value) for row in wanted.collect()} == expected


def test_fields_of_protobuf_are_columns_whether_sealed_or_not(
    spark: SparkSession, sealing: Standalone, topic: str
) -> None:
    place = message("Place", one("lat", 1, F.TYPE_DOUBLE))
    members = [one("n", 1), one("at", 2, "Place"), many("tags", 3, STRING)]
    definition = file(message("R", *members, many("seats", 4, "R.SeatsEntry"),
                              nested=[entry("SeatsEntry", INT32, STRING)]), place)  # fmt: skip
    build = class_of(definition)

    def payload(n: int) -> bytes:
        value = build(n=n, tags=["a"] * (n % 3))
        value.at.lat = n / 2
        value.seats[n] = "x"
        return bytes(value.SerializeToString())

    reader = spark.read.format("pulsark").options(
        serviceUrl=sealing.service_url, adminUrl=sealing.web_url, topic=topic, valueFormat="auto"
    )
    with connected(sealing) as client:
        producer = client.create_producer(
            topic, schema=ProtobufSchema(native(definition)), batching_max_messages=7
        )
        for first in (0, 300):
            # At first the broker has them; later the older ones are in the table's files.
            for n in range(first, first + 300):
                producer.send_async(payload(n), lambda result, _: None)
            producer.flush()
            found = reader.load().select("n", "at", "tags", "seats", "__valueRaw").collect()
            values = [row.asDict(recursive=True) for row in found]
            assert sorted(values, key=lambda value: int(value["n"])) == [
                {
                    "n": n, "at": {"lat": n / 2}, "tags": ["a"] * (n % 3), "seats": {n: "x"},
                    "__valueRaw": None,
                }
                for n in range(first + 300)
            ]  # fmt: skip
            deadline = time.monotonic() + SEALED_WITHIN_SECONDS
            while sealed_rows(sealing, topic) < first + 300:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    asked = reader.option("readTableFiles", "false").load().orderBy("n")
    assert_df_equality(asked, reader.option("readTableFiles", "true").load().orderBy("n"))
