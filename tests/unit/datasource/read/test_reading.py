"""Batch and stream readers without a JVM, over the fake broker."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from pulsark.datasource.admin.queries import QueryCalls
from pulsark.datasource.options.columns import COLUMNS
from pulsark.datasource.options.errors import (
    DataLossError,
    DataSourceError,
    OptionError,
    SubscriptionInUseError,
    TopicNotFoundError,
    UnavailableError,
)
from pulsark.datasource.options.options import Options
from pulsark.datasource.read.admission import Admission
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.reader import PulsarkReader, SplitPartition
from pulsark.datasource.read.stream_reader import PulsarkStreamReader
from pulsark.dispatch.spark.query_claims import QueryClaims
from pulsark.rows import ROW_SCHEMA
from pulsark.runtime import SystemClock
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.entry import build_entry
from pulsark.wire.position import Position
from tests.support.fake_broker import FakeBroker

T = "persistent://public/default/t"
COLUMNS_READ = ("partition", "message_id", "value")
RAW = layout_of(Options.parse({"topic": "t"}), dict)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


def alone(text: str) -> bytes:
    return build_entry(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), _(text)
    )


def batch(*texts: str) -> bytes:
    return build_batch(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1),
        [(pb.SingleMessageMetadata(payload_size=0), _(text)) for text in texts],
    )


def _(text: str) -> bytes:
    return text.encode()


def options(broker: FakeBroker, streaming: bool, **raw: Any) -> Options:
    given = {"adminUrl": broker.admin_url, "pollTimeoutMs": "2000"}
    given |= {} if {"topics", "topicsPattern"} & set(raw) else {"topic": "t"}
    return Options.parse(given | raw, streaming=streaming)


def read(broker: FakeBroker, **raw: Any) -> list[str]:
    """Values of a batch read, in split order."""
    reader = PulsarkReader(options(broker, False, **raw), RAW, COLUMNS_READ)
    return values(reader, reader.partitions())


def values(reader: Any, partitions: list[Any]) -> list[str]:
    rows: list[str] = []
    for partition in partitions:
        partition = pickle.loads(pickle.dumps(partition))
        for found in reader.read(partition):
            assert found.schema == to_arrow_schema(RAW.schema(COLUMNS_READ), timezone="UTC")
            rows += [row.decode() for row in found.column("value").to_pylist()]
    return rows


class Stream:
    """Calls a stream reader as Spark does, with a checkpoint that survives ``restart``."""

    def __init__(self, broker: FakeBroker, **raw: Any) -> None:
        self._options = options(broker, True, **raw)
        self.restart()
        self.offset = self.reader.initialOffset()
        self.end = self.offset

    def restart(self) -> None:
        self.reader = PulsarkStreamReader(self._options, RAW, COLUMNS_READ)

    def plan(self, limit: Any = None) -> bool:
        """The next end; whether there is a batch to run."""
        finder = self.reader._finder
        if finder is not None:
            finder._known._stale_at = 0.0  # the test does not wait until answers are old
            finder._listed._stale_at = 0.0
        limit = limit or self.reader.getDefaultReadLimit()
        self.end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        return bool(self.end != self.offset)

    def commit(self) -> None:
        """Commit what is planned, and wait until it is acknowledged."""
        self.reader.commit(self.offset)
        if self.reader._following is not None:
            self.reader._following.settle()

    def run(self) -> list[str]:
        """Run the planned batch and commit it."""
        found = values(self.reader, self.reader.partitions(self.offset, self.end))
        self.offset = self.end
        self.commit()
        return found

    def options_allow_loss(self) -> None:
        """From now on topics may go."""
        self.reader._options = replace(self.reader._options, fail_on_data_loss=False)

    def next(self, limit: Any = None) -> list[str]:
        return self.run() if self.plan(limit) else []


# -- batch ---------------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_table() -> None:
    assert [column.name for column in COLUMNS] == ROW_SCHEMA.names
    assert to_arrow_schema(RAW.schema(), timezone="UTC") == ROW_SCHEMA


def test_a_schema_given_by_the_user_must_be_a_subset() -> None:
    RAW.check(StructType().add("value", BinaryType()))
    with pytest.raises(OptionError, match="did you mean 'value'"):
        RAW.check(StructType().add("valu", StringType()))
    with pytest.raises(OptionError, match="'value' is binary, not string"):
        RAW.check(StructType().add("value", StringType()))
    with pytest.raises(OptionError, match="must be nullable"):
        RAW.check(StructType().add("entry_id", LongType(), nullable=False))


def test_everything_is_read_across_ledgers_and_partitions(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    broker.publish(topic, [batch("a", "b"), alone("c")], 0)
    broker.roll(topic, 0)
    broker.publish(topic, [alone("d")], 0)
    broker.publish(topic, [alone("e")], 1)
    assert read(broker) == ["a", "b", "c", "d", "e"]
    assert read(broker, minPartitions="4") == ["a", "b", "c", "d", "e"]


def at(ms: int, *texts: str) -> bytes:
    return build_batch(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=ms),
        [(pb.SingleMessageMetadata(payload_size=0), _(text)) for text in texts],
    )


def test_start_and_end_by_publish_time(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    broker.publish(topic, [at(1000, "a", "b"), at(2000, "c"), at(3000, "d")], 0)
    broker.publish(topic, [at(1500, "e")], 1)
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(broker, startingTimestamp="1500") == ["c", "d", "e"]
    assert read(broker, startingTime="1001", endingTime="3000") == ["c", "e"]
    assert read(broker, startingTimestamp="2000", **late) == ["c", "d"]
    assert read(broker, endingTimestamp="1") == []
    assert read(broker, endingTimestamp="9000") == ["a", "b", "c", "d", "e"]
    by_partition = json.dumps({"t": {"0": 2500, "1": 0}})
    assert read(broker, startingOffsetsByTimestamp=by_partition) == ["d", "e"]
    with pytest.raises(OptionError, match=r"t-partition-1 has no message published at 1970-01-01"):
        read(broker, startingTimestamp="2000")


def test_a_stream_starts_at_a_time(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [at(1000, "a"), at(2000, "b")])
    assert Stream(broker, startingTimestamp="2000").next() == ["b"]
    later = Stream(broker, startingTimestamp="3000", startingOffsetsByTimestampStrategy="latest")
    assert later.next() == []
    broker.publish(topic, [at(4000, "c")])
    assert later.next() == ["c"]


def test_a_stream_may_wait_for_its_topic(broker: FakeBroker) -> None:
    with pytest.raises(TopicNotFoundError):
        Stream(broker)
    stream = Stream(broker, waitForTopic="true", subscription="s")
    assert stream.next() == []
    topic = broker.create("t")
    broker.publish(topic, [alone("a")])
    assert stream.next() == ["a"]
    assert broker.topics[topic][-1].subscriptions.keys() == {"s"}


def test_splits_of_so_many_records(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [batch("a", "b", "c", "d")] * 10)
    reader = PulsarkReader(options(broker, False, maxRecordsPerPartition="12"), RAW, COLUMNS_READ)
    assert [split.splits[0].entries for split in reader.partitions()] == [2, 3, 2, 3]  # type: ignore[attr-defined]
    assert read(broker, maxRecordsPerPartition="12") == ["a", "b", "c", "d"] * 10


def test_many_small_topics_are_few_tasks(broker: FakeBroker) -> None:
    for number in range(50):
        broker.publish(broker.create(f"t-{number:02d}"), [alone(f"{number:02d}")])
    given = {"topicsPattern": "t-.*", "minPartitions": "4"}
    reader = PulsarkReader(options(broker, False, **given), RAW, COLUMNS_READ)
    assert 4 <= len(reader.partitions()) <= 8
    assert read(broker, **given) == [f"{number:02d}" for number in range(50)]


def test_ten_thousand_topics_are_planned_by_few_requests(broker: FakeBroker) -> None:
    for number in range(10_000):
        broker.create(f"t-{number}")
    broker.publish("persistent://public/default/t-7", [alone("a")])
    stream = Stream(broker, topicsPattern="t-.*", startingOffsets="earliest")
    assert stream.next() == ["a"]
    broker.requests.clear()
    broker.publish("persistent://public/default/t-9999", [alone("b")])
    broker.topics.pop("persistent://public/default/t-5")
    broker.publish(broker.create("t-new"), [alone("c")])
    stream.options_allow_loss()
    assert stream.plan()
    partitions = stream.reader.partitions(stream.offset, stream.end)
    assert len(partitions) <= 2 * (os.cpu_count() or 1)
    assert sorted(values(stream.reader, partitions)) == ["b", "c"]
    assert len(broker.requests) < 100


def test_values_as_text(broker: FakeBroker) -> None:
    broker.publish(broker.create("t"), [alone("\u00e4"), batch("b", "c")])
    given = options(broker, False, valueFormat="string")
    layout = layout_of(given, dict)
    reader = PulsarkReader(given, layout, ("value", "partition"))
    (found,) = [rows for split in reader.partitions() for rows in reader.read(split)]
    schema = layout.schema(("value", "partition"))
    assert found.schema == to_arrow_schema(schema, timezone="UTC")
    assert found.column(0).to_pylist() == ["\u00e4", "b", "c"]
    without = options(broker, False, includeHeaders="false")
    assert "properties" not in layout_of(without, dict).columns


def test_a_single_partition_gives_several_splits(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone(str(i)) for i in range(10)])
    reader = PulsarkReader(options(broker, False, minPartitions="5"), RAW, COLUMNS_READ)
    splits = reader.partitions()
    assert [split.splits[0].entries for split in splits] == [2] * 5  # type: ignore[attr-defined]
    assert values(reader, splits) == [str(i) for i in range(10)]


def test_an_empty_topic_has_no_splits(broker: FakeBroker) -> None:
    broker.create("t", 3)
    reader = PulsarkReader(options(broker, False), RAW, COLUMNS_READ)
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]


def test_starting_and_ending_offsets_are_messages_and_both_are_read(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), batch("b", "c", "d"), alone("e")])

    def between(start: str, end: str) -> str:
        point = {
            "startingOffsets": json.dumps({"t": {"-1": start}}),
            "endingOffsets": json.dumps({T: {"0": end}}),
        }
        return "".join(read(broker, **point))

    assert between("1:1", "1:1") == "bcd"
    assert between("1:1:1", "1:1:1") == "c"
    assert between("1:1:-1:2", "1:2") == "de"
    assert between("1:0", "1:1:0") == "ab"
    assert between("1:0:0", "1:0:0") == "a"
    assert between("1:2", "1:1") == ""
    with pytest.raises(OptionError, match=r"'endingOffsets': 1:3 is beyond the end of .*: .* 1:2"):
        between("1:0", "1:3")
    with pytest.raises(OptionError, match="'endingOffsets': 2:0 is beyond the end"):
        between("1:0", "2:0")
    latest = "9223372036854775807:9223372036854775807"
    assert between("1:2", latest) == "e"
    assert between(latest, "latest") == ""


@pytest.mark.parametrize("streaming", [False, True])
def test_a_start_behind_the_end_is_an_error(broker: FakeBroker, streaming: bool) -> None:
    topic = broker.create("t", 2)
    broker.publish(topic, [alone("a"), batch("b", "c")], 1)

    def start(place: str) -> None:
        offsets = {"startingOffsets": json.dumps({"t": {"0": "earliest", "1": place}})}
        if streaming:
            Stream(broker, **offsets)
        else:
            read(broker, **offsets)

    for place in ("1:3", "1:2:1", "1:500", "2:0", "99999:0", "99999:0:4"):
        said = f"'startingOffsets': {place} is beyond the end of .*t-partition-1: .* is 1:1"
        with pytest.raises(OptionError, match=said):
            start(place)
    for place in ("1:1", "1:1:1", "1:1:7", "1:2", "1:2:0"):
        start(place)


def test_the_place_behind_the_end_stays_a_valid_start(broker: FakeBroker) -> None:
    """A job keeps where it ended, and starts there the next time."""
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), alone("b")])

    def stream(place: str) -> Stream:
        return Stream(broker, startingOffsets=json.dumps({"t": place}))

    before = stream("1:2")
    assert before.next() == []
    broker.roll(topic)  # ledger 2, empty
    for place in ("1:2", "2:-1", "2:0"):
        assert stream(place).next() == []
    with pytest.raises(OptionError, match=r"2:1 is beyond the end of .*: its last message is 1:1"):
        stream("2:1")
    broker.publish(topic, [alone("c")])
    broker.topics[topic][-1].trim(1)
    for each in (before, stream("1:2"), stream("2:0")):
        assert each.next() == ["c"]
    broker.roll(topic)  # ledger 3
    broker.topics[topic][-1].trim(2)
    assert stream("2:1").next() == stream("3:0").next() == []
    broker.create("t")
    with pytest.raises(OptionError, match=r"5:0 is beyond the end of .*: it has no message yet"):
        stream("5:0")


def test_offsets_must_name_every_partition(broker: FakeBroker) -> None:
    broker.create("t", 2)
    with pytest.raises(OptionError, match="do not name partition 1 of"):
        read(broker, startingOffsets='{"t": {"0": "earliest"}}')
    with pytest.raises(OptionError, match=r"partition 5 of .*does not read"):
        read(
            broker,
            startingOffsets='{"t": {"0": "earliest", "1": "earliest", "5": "earliest"}}',
        )


def test_topics_and_patterns(broker: FakeBroker) -> None:
    for name in ("orders-a", "orders-b", "other"):
        broker.publish(broker.create(name), [alone(name)])
    broker.publish(broker.create("orders-c", 1), [alone("orders-c")], 0)
    assert read(broker, topics=f"other,orders-a,{T[:-1]}other") == ["orders-a", "other"]
    wanted = ["orders-a", "orders-b", "orders-c"]
    assert read(broker, topicsPattern="orders-.*") == wanted
    assert read(broker, topicsPattern="persistent://public/default/orders-[abc]") == wanted
    with pytest.raises(TopicNotFoundError, match="no topic matches"):
        read(broker, topicsPattern="nothing")
    with pytest.raises(TopicNotFoundError, match="missing does not exist at http"):
        read(broker, topics="missing")
    with pytest.raises(OptionError, match="Invalid name"):
        read(broker, topics="a/b")
    with pytest.raises(OptionError, match="stores nothing"):
        read(broker, topics="non-persistent://public/default/x")


def test_a_broken_stream_is_resumed(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone(str(i)) for i in range(4)])
    broker.fail_reads = 3
    assert read(broker) == ["0", "1", "2", "3"]


def test_a_read_never_ends_short(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone(str(i)) for i in range(4)])
    broker.hide_from = Position(1, 2)
    with pytest.raises(UnavailableError, match=r"no entry 1:2 from grpc.* within 0.2 s"):
        read(broker, pollTimeoutMs="200")


def test_a_gap_is_data_loss(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), alone("b")])
    broker.roll(topic)
    broker.publish(topic, [alone("c")])
    reader = PulsarkReader(options(broker, False), RAW, COLUMNS_READ)
    lenient = PulsarkReader(options(broker, False, failOnDataLoss="false"), RAW, COLUMNS_READ)
    splits = reader.partitions()
    del broker.topics[topic][-1].ledgers[1]
    with pytest.raises(DataLossError, match="message 1:0 is gone, next comes 2:0"):
        values(reader, splits)
    assert values(lenient, splits) == ["c"]


def test_messages_deleted_since_a_read_was_planned_are_data_loss(broker: FakeBroker) -> None:
    """Without waiting until ``pollTimeoutMs`` is over."""
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), alone("b")])
    long = "600000"
    reader = PulsarkReader(options(broker, False, pollTimeoutMs=long), RAW, COLUMNS_READ)
    lenient = PulsarkReader(
        options(broker, False, failOnDataLoss="false", pollTimeoutMs=long), RAW, COLUMNS_READ
    )
    splits = reader.partitions()
    broker.roll(topic)
    broker.topics[topic][-1].trim(1)
    with pytest.raises(DataLossError, match="message 1:0 is gone, next comes the end"):
        values(reader, splits)
    assert values(lenient, splits) == []


def test_a_topic_created_again_is_not_read_as_the_old_one(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a")])
    reader = PulsarkReader(options(broker, False), RAW, COLUMNS_READ)
    splits = reader.partitions()
    broker.create("t")
    with pytest.raises(TopicNotFoundError, match="created again"):
        values(reader, splits)


def test_no_broker_is_one_clear_error(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsark.admin_client.client.FIRST_CONTACT_SECONDS", 0.1)
    with pytest.raises(
        UnavailableError, match="no answer from the admin API at http://127"
    ) as caught:
        read(broker, adminUrl="http://127.0.0.1:1")
    assert "adminUrl" in str(caught.value)


def test_rows_of_large_reads_come_in_several_batches(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [batch(*map(str, range(3000))) for _ in range(8)])
    reader = PulsarkReader(options(broker, False), RAW, ("batch_index",))
    (split,) = reader.partitions()
    assert [found.num_rows for found in reader.read(split)] == [12_000, 12_000]


# -- stream --------------------------------------------------------------------------------------


def test_a_stream_reads_every_message_once(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    broker.publish(topic, [alone("before")], 0)
    stream = Stream(broker)
    assert stream.next() == []
    broker.publish(topic, [batch("a", "b")], 0)
    broker.publish(topic, [alone("c")], 1)
    assert stream.next() == ["a", "b", "c"]
    assert stream.next() == []
    broker.roll(topic, 0)
    broker.publish(topic, [alone("d")], 0)
    assert stream.next() == ["d"]


def test_the_start_does_not_move_between_the_two_questions(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("old")])
    reader = PulsarkStreamReader(options(broker, True), RAW, COLUMNS_READ)
    first = reader.initialOffset()
    broker.publish(topic, [alone("new")])
    assert reader.initialOffset() == first


def test_a_batch_is_planned_again_with_the_same_messages(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    stream = Stream(broker, startingOffsets="earliest")
    broker.publish(topic, [alone(str(i)) for i in range(5)], 0)
    broker.publish(topic, [batch("x", "y")], 1)
    assert stream.plan()
    broker.publish(topic, [alone("later")], 0)
    broker.roll(topic, 0)
    broker.publish(topic, [alone("latest")], 0)
    stream.restart()
    assert stream.run() == ["0", "1", "2", "3", "4", "x", "y"]
    assert stream.next() == ["later", "latest"]


def test_a_partition_that_appears_is_read_from_its_start(broker: FakeBroker) -> None:
    topic = broker.create("t", 1)
    broker.publish(topic, [alone("a")], 0)
    stream = Stream(broker)
    assert stream.next() == []
    broker.topics[topic][1] = type(broker.topics[topic][0])()
    broker.publish(topic, [alone("b"), alone("c")], 1)
    assert stream.plan()
    stream.restart()
    assert stream.run() == ["b", "c"]
    assert not stream.plan()
    broker.publish(topic, [alone("d")], 1)
    assert stream.next() == ["d"]


def test_topics_that_match_later_are_found(broker: FakeBroker) -> None:
    stream = Stream(broker, topicsPattern="orders-.*")
    assert stream.next() == []
    broker.publish(broker.create("orders-1"), [alone("a")])
    assert stream.next() == ["a"]


def test_the_subscription_follows(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), alone("b")])
    stream = Stream(broker, subscription="s", startingOffsets="earliest")
    assert stream.plan()
    held = broker.topics[topic][-1].subscriptions
    assert held == {"s": (1, -1)}
    assert stream.run() == ["a", "b"]
    assert held == {"s": (1, 1)}
    del held["s"]
    broker.publish(topic, [alone("c")])
    assert stream.next() == ["c"]
    assert held == {"s": (1, 2)}  # made again, to receive what comes after the batch
    requests = len(broker.requests)
    stream.commit()
    assert len(broker.requests) == requests


def test_an_idle_query_leaves_no_backlog(broker: FakeBroker) -> None:
    topic = broker.create("t")
    stream = Stream(broker, subscription="s", startingOffsets="earliest")
    broker.publish(topic, [alone("a")])
    assert stream.plan()
    stream.offset = stream.end  # the batch ran, and Spark commits it with the next one only
    held = broker.topics[topic][-1].subscriptions
    assert held == {"s": (-1, -1)}
    assert not stream.plan()
    assert held == {"s": (1, 0)}
    requests = [request for request in broker.requests if "acknowledge" in request]
    assert not stream.plan()
    assert requests == [request for request in broker.requests if "acknowledge" in request]


def test_a_stopped_query_leaves_no_backlog(broker: FakeBroker) -> None:
    topic = broker.create("t")
    stream = Stream(broker, subscription="s", startingOffsets="earliest")
    broker.publish(topic, [alone("a")])
    assert stream.plan()
    stream.offset = stream.end
    broker.publish(topic, [alone("b")])
    assert stream.plan()
    stream.reader.stop()
    assert broker.topics[topic][-1].subscriptions == {"s": (1, 0)}


def test_available_now_stops_where_the_topic_ended(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), alone("b"), alone("c")])
    stream = Stream(broker, startingOffsets="earliest", subscription="s")
    stream.reader.prepareForTriggerAvailableNow()
    broker.publish(topic, [alone("late")])
    assert stream.next(ReadMaxBytes(1)) == ["a"]
    assert stream.next(ReadAllAvailable()) == ["b", "c"]
    assert stream.next() == []
    assert broker.topics[topic][-1].subscriptions == {"s": (1, 2)}


def test_a_byte_limit_is_shared_by_backlog(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    broker.publish(topic, [alone("x" * 1000)] * 30, 0)
    broker.publish(topic, [alone("y" * 1000)] * 10, 1)
    stream = Stream(broker, startingOffsets="earliest", maxBytesPerTrigger="8k")
    found = []
    while batch_values := stream.next():
        found.append(batch_values)
    assert [value[0] for value in found[0]] == ["x"] * 6 + ["y"] * 2
    everything = sorted(value[0] for each in found for value in each)
    assert everything == ["x"] * 30 + ["y"] * 10


def test_a_topic_created_again_stops_the_query(broker: FakeBroker) -> None:
    broker.publish(broker.create("t"), [alone("a")])
    stream = Stream(broker)
    lenient = Stream(broker, failOnDataLoss="false")
    broker.publish(broker.create("t"), [alone("b")])
    with pytest.raises(DataSourceError, match=r"the checkpoint is of another topic .*t \(its id"):
        stream.plan()
    assert lenient.next() == ["b"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pattern_goes_on_without_a_topic_that_was_read(
    broker: FakeBroker, restarted: bool
) -> None:
    names = [broker.create(f"orders-{number}", 2) for number in (1, 2)]
    for name in names:
        broker.publish(name, [alone("a")], 0)
        broker.publish(name, [alone("b")], 1)
    stream = Stream(broker, topicsPattern="orders-.*", startingOffsets="earliest")
    assert stream.next() == ["a", "b", "a", "b"]
    broker.delete(names[0])
    broker.publish(names[1], [alone("c")], 0)
    broker.publish(broker.create("orders-3"), [alone("d")])
    if restarted:
        stream.restart()
    assert stream.next() == ["c", "d"]
    assert not any("orders-1" in name for name in stream.offset["partitions"])
    broker.publish(broker.create("orders-1", 2), [alone("e")], 0)
    assert stream.next() == ["e"]


def test_a_topic_of_a_pattern_that_was_read_is_another_when_it_comes_again(
    broker: FakeBroker,
) -> None:
    topic = broker.create("orders-1")
    empty = broker.create("orders-2")
    broker.publish(topic, [alone("a"), batch("b", "c")])
    stream = Stream(broker, topicsPattern="orders-.*", startingOffsets="earliest")
    assert stream.next() == ["a", "b", "c"]
    stream.restart()
    for name in (topic, empty):
        broker.delete(name)
        broker.publish(broker.create(name), [alone(name[-1])])
    assert stream.next() == ["1", "2"]
    stream.restart()
    broker.publish(topic, [alone("d")])
    assert stream.next() == ["d"]


def test_available_now_leaves_a_topic_that_comes_again_to_the_next_run(broker: FakeBroker) -> None:
    topic = broker.create("orders-1")
    broker.publish(topic, [alone("a")])
    stream = Stream(broker, topicsPattern="orders-.*", startingOffsets="earliest")
    assert stream.next() == ["a"]
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    broker.delete(topic)
    broker.publish(broker.create(topic), [alone("b"), alone("c")])
    assert not stream.plan()
    stream.restart()
    assert stream.next() == ["b", "c"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("is_remembered", [False, True])
def test_a_topic_of_a_pattern_with_unread_messages_stops_the_query(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, is_remembered: bool, again: bool
) -> None:
    monkeypatch.setattr("pulsark.datasource.read.stream_reader._DELETION_SECONDS", 0.0)
    topic, other = broker.create("orders-1"), broker.create("orders-2")
    broker.publish(topic, [batch("a", "b")])
    strict, lenient = (
        Stream(broker, topicsPattern="orders-.*", startingOffsets="earliest", **raw)
        for raw in ({}, {"failOnDataLoss": "false"})
    )
    for stream in (strict, lenient):
        assert stream.next() == ["a", "b"]
    if is_remembered:
        broker.publish(topic, [alone("c")])
    broker.delete(topic, is_remembered=is_remembered)
    broker.publish(other, [alone("d")])
    if again:
        broker.publish(broker.create(topic), [alone("e")])
    said = "read up to 1:0, and its last message was 1:1" if is_remembered else "is not known to"
    with pytest.raises(DataSourceError, match=rf"orders-1.*{said}"):
        strict.plan()
    assert lenient.next() == (["e", "d"] if again else ["d"])


def test_a_planned_batch_of_a_deleted_topic_stops_the_query(broker: FakeBroker) -> None:
    topic = broker.create("orders-1")
    broker.publish(topic, [alone("a")])
    stream = Stream(broker, topicsPattern="orders-.*", startingOffsets="earliest")
    assert stream.plan()
    stream.restart()
    broker.delete(topic)
    with pytest.raises(TopicNotFoundError, match="read up to 1:-1, and its last message was 1:0"):
        stream.run()


def test_a_topic_that_is_being_deleted_is_waited_for(broker: FakeBroker) -> None:
    name = broker.create("orders-1")
    broker.publish(name, [alone("a")])
    stream = Stream(broker, topicsPattern="orders-.*", startingOffsets="earliest")
    assert stream.next() == ["a"]
    topic_id = broker.topics[name][-1].topic_id
    broker.delete(name, is_remembered=False)

    def is_asked() -> None:
        while not any("/deleted/" in line for line in broker.requests):
            time.sleep(0.001)
        broker.ended[name, topic_id] = Position(1, 0)

    deleting = threading.Thread(target=is_asked)
    deleting.start()
    assert stream.next() == []
    deleting.join()
    assert stream.offset["partitions"] == {}


def test_messages_trimmed_before_they_were_read_stop_the_query(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), alone("b")])
    strict, lenient = (
        Stream(broker, startingOffsets=json.dumps({"t": "1:1"}), **raw)
        for raw in ({}, {"failOnDataLoss": "false"})
    )
    broker.roll(topic)
    broker.publish(topic, [alone("c")])
    broker.topics[topic][-1].trim(1)
    with pytest.raises(DataLossError, match="after 1:0 were deleted, up to 1:1"):
        strict.next()
    assert lenient.next() == ["c"]


def test_messages_trimmed_after_they_were_read_are_no_loss(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a"), alone("b")])
    stream = Stream(broker, startingOffsets="earliest")
    assert stream.next() == ["a", "b"]
    broker.roll(topic)
    broker.topics[topic][-1].trim(1)
    assert stream.next() == []
    stream.restart()
    broker.publish(topic, [alone("c")])
    assert stream.next() == ["c"]


def test_what_came_and_went_in_a_topic_that_was_empty_is_a_loss(broker: FakeBroker) -> None:
    topic = broker.create("t")
    stream = Stream(broker)
    broker.publish(topic, [alone("a")])
    broker.roll(topic)
    broker.topics[topic][-1].trim(1)
    broker.publish(topic, [alone("b")])
    with pytest.raises(DataLossError, match="were deleted, up to 1:0"):
        stream.next()


def test_a_row_limit_is_exact_and_cuts_batches(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    broker.publish(topic, [batch(*"abcde"), alone("f"), batch(*"ghij")], 0)
    stream = Stream(broker, startingOffsets="earliest", maxRowsPerTrigger="4")
    found = []
    while rows := stream.next():
        found.append("".join(rows))
        stream.restart()
    assert found == ["abcd", "efgh", "ij"]
    broker.publish(topic, [batch("x" * 100, "y" * 100), alone("z" * 100)], 1)
    broker.publish(topic, [alone("k" * 100)] * 3, 0)
    sizes = []
    while rows := stream.next():
        sizes.append(len(rows))
    assert sum(sizes) == 6
    assert max(sizes) <= 4


def test_the_smaller_of_rows_and_bytes_counts(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("x" * 1000)] * 10)
    limits = {"startingOffsets": "earliest", "maxRowsPerTrigger": "5"}
    assert len(Stream(broker, maxBytesPerTrigger="3k", **limits).next()) == 3
    assert len(Stream(broker, maxBytesPerTrigger="30k", **limits).next()) == 5
    everything = Stream(broker, maxBytesPerTrigger="3k", **limits)
    assert len(everything.next(ReadAllAvailable())) == 10  # as Trigger.Once asks


def test_a_batch_waits_for_rows_but_not_for_ever(broker: FakeBroker) -> None:
    topic = broker.create("t")
    stream = Stream(broker, minRowsPerTrigger="3", maxTriggerDelay="10s")
    now = 100.0
    stream.reader._admitting = Admission(
        stream.reader._options, stream.reader._client().topics.count_messages, lambda: now
    )
    broker.publish(topic, [alone("a")])
    assert stream.next() == ["a"]  # the first batch of a run does not wait
    broker.publish(topic, [alone("b")])
    assert stream.next() == []
    broker.publish(topic, [batch("c", "d")])
    assert stream.next() == ["b", "c", "d"]
    broker.publish(topic, [alone("e")])
    now = 109.9
    assert stream.next() == []
    asked = [request for request in broker.requests if "messageCount" in request]
    assert stream.next() == []
    assert asked == [request for request in broker.requests if "messageCount" in request]
    now = 110.0
    assert stream.next() == ["e"]


def test_available_now_waits_for_nothing(broker: FakeBroker) -> None:
    topic = broker.create("t")
    stream = Stream(broker, startingOffsets="earliest", minRowsPerTrigger="3")
    broker.publish(topic, [alone("a")])
    assert stream.next() == ["a"]
    broker.publish(topic, [alone("b")])
    assert stream.next() == []
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.next() == ["b"]


def test_a_poll_asks_only_for_ledgers_that_are_not_read_yet(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    for number in range(3):
        broker.publish(topic, [alone(f"a{number}")], 0)
        broker.roll(topic, 0)
    broker.publish(topic, [alone("b")], 1)
    stream = Stream(broker, startingOffsets="earliest")
    assert stream.next() == ["a0", "a1", "a2", "b"]
    assert stream.next() == []
    last = next(r for r in reversed(broker.requests) if "segments" in r)
    assert last.endswith("/t/segments?after=3,5")
    broker.topics[topic][2] = type(broker.topics[topic][0])()
    broker.publish(topic, [alone("c")], 2)
    broker.publish(topic, [alone("a3")], 0)
    assert stream.next() == ["a3", "c"]


def test_a_subscription_belongs_to_one_query(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.datasource.read.following._WAIT_SECONDS", 0.0)
    topic = broker.create("t")
    broker.publish(topic, [alone("a")])
    first = Stream(broker, subscription="s", startingOffsets="earliest")
    assert first.next() == ["a"]
    second = Stream(broker, subscription="s", startingOffsets="earliest")
    with pytest.raises(SubscriptionInUseError, match=r"held by .*:\d+. Stop that query"):
        second.plan()
    assert Stream(broker, subscription="other", startingOffsets="earliest").next() == ["a"]
    first.reader.stop()
    assert second.next() == ["a"]


def test_what_a_query_has_read_never_goes_back() -> None:
    claims = QueryClaims(SystemClock())
    claims.claim("q", "here:1", None, [T])
    claims.renew("q", {T: Position(3, 9)})
    claims.renew("q", {T: Position(3, -1), f"{T}-partition-1": Position(4, 0)})
    query = claims.get("q")
    assert query is not None
    assert query.read == {T: Position(3, 9), f"{T}-partition-1": Position(4, 0)}


def test_a_query_that_was_thought_dead_stops(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.datasource.read.following.RENEW_SECONDS", 0.01)
    broker.publish(broker.create("t"), [alone("a")])
    first = Stream(broker, subscription="s", startingOffsets="earliest")
    assert first.next() == ["a"]
    claims = QueryClaims(SystemClock())
    claims.claim("q", "elsewhere:1", "s", [T])
    broker.claims = claims  # started anew, and somebody else came first
    claim = first.reader._following._claim  # type: ignore[union-attr]
    claim._thread.join(5)  # type: ignore[union-attr]
    with pytest.raises(SubscriptionInUseError, match="held by elsewhere:1"):
        first.plan()
    with pytest.raises(SubscriptionInUseError, match="held by elsewhere:1"):
        first.commit()


def test_an_acknowledgement_that_failed_is_said_with_the_next_one(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a")])
    stream = Stream(broker, subscription="s", startingOffsets="earliest")
    assert stream.next() == ["a"]
    broker.publish(topic, [alone("b")])
    assert stream.plan()

    def refused(*_: object) -> None:
        raise DataSourceError("the disk is full")

    monkeypatch.setattr(QueryCalls, "acknowledge", refused)
    stream.reader.commit(stream.end)
    with pytest.raises(DataSourceError, match="the disk is full"):
        stream.reader.commit(stream.end)


def test_a_checkpoint_of_another_query_is_refused(broker: FakeBroker) -> None:
    broker.publish(broker.create("t"), [alone("a")])
    broker.publish(broker.create("u"), [alone("b")])
    offset = Stream(broker).offset
    for other in ({"topics": "u"}, {"topicsPattern": "u.*"}):
        stream = Stream(broker, **other)
        stream.offset = offset
        with pytest.raises(DataSourceError, match=r"is of .*/t, which this query does not read"):
            stream.plan()
        with pytest.raises(DataSourceError, match="with a new one"):
            stream.reader.partitions(offset, _moved(offset))
        lenient = Stream(broker, failOnDataLoss="false", **other)
        lenient.offset = offset
        assert lenient.next() == ["b"]


def _moved(offset: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(offset).replace('"1:0"', '"1:9"'))  # type: ignore[no-any-return]


def test_polling_while_nothing_happens_costs_few_requests(broker: FakeBroker) -> None:
    broker.create("t")
    reader = PulsarkStreamReader(options(broker, True), RAW, COLUMNS_READ)
    start = reader.initialOffset()
    before, began = len(broker.requests), time.monotonic()
    for _ in range(20):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert len(broker.requests) - before <= (time.monotonic() - began) / 0.02 + 3


def test_a_reader_can_be_pickled_for_the_tasks(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [alone("a")])
    reader = pickle.loads(pickle.dumps(PulsarkReader(options(broker, False), RAW, COLUMNS_READ)))
    assert values(reader, reader.partitions()) == ["a"]
    stream = PulsarkStreamReader(options(broker, True), RAW, COLUMNS_READ)
    assert isinstance(pickle.loads(pickle.dumps(stream)), PulsarkStreamReader)
    assert isinstance(reader.partitions()[0], SplitPartition)
