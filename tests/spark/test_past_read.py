"""``versionAsOf`` and ``timestampAsOf``: topics as they were."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable

from pulsark.admin_client.client import AdminClient
from pulsark.jobs.erase_messages import JOB as ERASE
from pulsark.jobs.job import Context
from pulsark.jobs.runner import run_program
from tests.support.python_client import connected
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Nothing is sealed but when a test says so.
SETTINGS = {
    "PULSARK_sealEnabled": "false",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "20",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
KEYS = "partition, ledger_id, entry_id, batch_index"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("past") / "data", env=SETTINGS) as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: Standalone) -> Iterator[pulsar.Client]:
    with connected(broker) as client:
        yield client


class Topic:
    """A topic with two partitions, and what was published to it by when."""

    def __init__(self, spark: SparkSession, broker: Standalone, client: pulsar.Client, name: str):
        self._spark = spark
        self.admin = AdminClient(broker.web_url)
        self.path = f"/persistent/public/default/{name}"
        self.admin.call("PUT", f"{self.path}/partitions", 2)
        self.reading = {
            "serviceUrl": broker.service_url, "adminUrl": broker.web_url, "topic": name,
        }  # fmt: skip
        self._producer = client.create_producer(
            name,
            batching_enabled=False,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        self.sent = 0

    def publish(self, count: int = 50) -> str:
        """More messages, numbered; the time after which the next ones come."""
        for number in range(self.sent, self.sent + count):
            self._producer.send_async(
                b"%d" % number, lambda *_: None, partition_key=f"k{number % 7}"
            )
        self._producer.flush()
        self.sent += count
        time.sleep(0.01)
        now = datetime.now(UTC).isoformat()
        time.sleep(0.01)
        return now

    def seal(self) -> int:
        """Seal everything; the version of the table then."""
        self.admin.call("POST", f"{self.path}/seal")
        return int(DeltaTable(self.directory).version())

    @property
    def directory(self) -> str:
        found: dict[str, Any] = self.admin.get(f"{self.path}/table")
        return str(found["uri"])

    def load(self, **options: Any) -> DataFrame:
        return self._spark.read.format("pulsark").options(**self.reading, **options).load()

    def read(self, **options: Any) -> list[int]:
        rows = self.load(**options).select("value").collect()
        return sorted(int(row.value) for row in rows)

    def same_as_delta(self, version: int) -> int:
        """The rows of a version are those that plain Delta reads; their number."""
        order = KEYS.split(", ")
        columns = [*order, "key", "value", "publish_time"]
        delta = self._spark.read.format("delta").option("versionAsOf", version).load(self.directory)
        plain = delta.where("batch_size IS NULL OR batch_size != 0").select(columns).orderBy(order)
        mine = self.load(versionAsOf=version).select(columns).orderBy(order)
        assert_df_equality(mine, plain, ignore_nullable=True)
        return mine.count()


@pytest.fixture
def past(spark: SparkSession, broker: Standalone, client: pulsar.Client, topic: str) -> Topic:
    return Topic(spark, broker, client, topic)


@pytest.mark.feature("F92")
def test_versions_are_those_of_the_table_and_times_those_of_the_topic(past: Topic) -> None:
    before = datetime.now(UTC).isoformat()
    with pytest.raises(Exception, match="it has no table yet; pulsark topics seal makes one"):
        past.read(versionAsOf="1")
    times = [past.publish()]
    assert past.read(timestampAsOf=times[0]) == list(range(50))  # nothing is sealed
    first = past.seal()
    times.append(past.publish())
    times.append(past.publish())
    last = past.seal()
    times.append(past.publish())
    for version in range(last + 1):
        past.same_as_delta(version)
    assert past.same_as_delta(first) == 50
    assert past.same_as_delta(last) == 150
    parts = past.load(versionAsOf=last).select("partition").distinct().collect()
    assert {row.partition for row in parts} == {0, 1}
    for count, moment in enumerate(times, 1):
        assert past.read(timestampAsOf=moment) == list(range(50 * count))
    assert past.read(timestampAsOf=times[1], minPartitions="7") == list(range(100))
    with pytest.raises(Exception, match=f"the versions 0 to {last}, and no {last + 1}"):
        past.read(versionAsOf=last + 1)
    for wrong, says in (("2100-01-01", "is not over yet"), ("2020-01-01", "was made at")):
        with pytest.raises(Exception, match=says):
            past.read(timestampAsOf=wrong)
    assert before < times[0]


def test_what_was_trimmed_since_is_there_until_it_is_vacuumed(past: Topic) -> None:
    then = past.publish(200)
    sealed = past.seal()
    assert past.read(timestampAsOf=then) == list(range(200))
    past.admin.call("DELETE", f"{past.path}/truncate")
    past.admin.call("POST", f"{past.path}/table/retention")
    assert len(past.read()) < 200
    assert past.same_as_delta(sealed) == 200
    assert past.read(timestampAsOf=then) == list(range(200))
    # Unsealed messages that were trimmed cannot be had back.
    later = past.publish(200)
    past.admin.call("DELETE", f"{past.path}/truncate")
    with pytest.raises(Exception, match="it is not known whether some were there"):
        past.read(timestampAsOf=later)
    (path, *_) = DeltaTable(past.directory, version=sealed).file_uris()
    Path(path.removeprefix("file://")).unlink()
    with pytest.raises(Exception, match=rf"files of version {sealed} were deleted"):
        past.read(versionAsOf=sealed)


def test_what_was_erased_since(
    spark: SparkSession, broker: Standalone, past: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    then = past.publish(60)
    sealed = past.seal()
    at_sealed = datetime.now(UTC).isoformat()
    where = ["--service-url", broker.service_url, "--admin-url", broker.web_url]
    words = ["--topic", past.reading["topic"], "--where", "key = 'k1'"]

    def erase(*more: str) -> None:
        found = run_program(ERASE, [*words, *more, *where], Context(ERASE.name, given_spark=spark))
        assert found == 0, capsys.readouterr()

    erase()
    left = [number for number in range(60) if number % 7 != 1]
    assert past.read() == left
    assert past.read(versionAsOf=sealed) == list(range(60))
    assert past.read(timestampAsOf=at_sealed) == list(range(60))
    assert past.read(timestampAsOf=then) == left  # no version had them by then
    erase("--vacuum-hours", "0")
    newest = int(DeltaTable(past.directory).version())
    with pytest.raises(Exception, match=f"the versions {newest} to {newest} are there"):
        past.read(versionAsOf=sealed)
    assert past.read(versionAsOf=newest) == left
