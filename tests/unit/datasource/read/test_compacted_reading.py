"""``readCompacted`` without a JVM, over the fake broker."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.datasource.options.errors import DataLossError, DataSourceError, OptionError
from pulsark.datasource.options.options import Options
from pulsark.datasource.read.filters import Condition
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.reader import FilteringReader, PulsarkReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.position import Position
from tests.support.fake_broker import FakeBroker

COLUMNS = ("message_id", "value")
RAW = layout_of(Options.parse({"topic": "t"}), dict)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


def entry(*texts: str, ms: int = 1) -> bytes:
    """A batch; a message without text was removed from it by compaction."""
    return build_batch(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=ms),
        [
            (pb.SingleMessageMetadata(payload_size=0, compacted_out=not text), text.encode())
            for text in texts
        ],
    )


def reader(broker: FakeBroker, **raw: Any) -> PulsarkReader:
    given = {"adminUrl": broker.admin_url, "pollTimeoutMs": "2000", "readCompacted": "true"}
    given |= {} if "topicsPattern" in raw else {"topic": "t"}
    return PulsarkReader(Options.parse(given | raw, streaming=False), RAW, COLUMNS)


def rows(found: PulsarkReader) -> list[str]:
    """``message id=value``, in the order of the splits."""
    return [
        f"{row['message_id']}={row['value'].decode()}"
        for partition in pickle.loads(pickle.dumps(found.partitions()))
        for batch in found.read(partition)
        for row in batch.to_pylist()
    ]


def values(broker: FakeBroker, **raw: Any) -> str:
    return "".join(row.partition("=")[2] for row in rows(reader(broker, **raw)))


def compacted(broker: FakeBroker, **how: Any) -> str:
    """A topic with a tail behind what compaction left: two entries, one of them with a hole."""
    topic = broker.create("t")
    sent = [entry("a", ms=1000), entry("b", "c", "d", ms=2000), entry("e", ms=3000)]
    broker.publish(topic, sent)
    remains = [(Position(1, 0), sent[0]), (Position(1, 1), entry("", "c", "d", ms=2000))]
    broker.compact(topic, remains, **how)
    broker.publish(topic, [entry("f", "", ms=4000), entry("g", ms=5000)])
    return topic


def test_what_is_left_up_to_the_horizon_and_all_behind_it(broker: FakeBroker) -> None:
    compacted(broker)
    assert rows(reader(broker)) == [
        "1:0:-1:0=a", "1:1:-1:1=c", "1:1:-1:2=d", "1:3:-1:0=f", "1:4:-1:0=g",
    ]  # fmt: skip
    assert values(broker, readCompacted="false") == "abcdefg"


def test_what_was_trimmed_is_still_there(broker: FakeBroker) -> None:
    topic = compacted(broker)
    broker.roll(topic)
    broker.publish(topic, [entry("h")])
    held = broker.topics[topic][-1]
    held.trim(1)
    held.trimmed = Position(1, 2)  # up to the horizon
    assert values(broker) == "acdh"
    held.trimmed = Position(1, 4)
    with pytest.raises(
        DataLossError, match=r"messages after 1:2 were deleted, up to 1:4, before they were compact"
    ) as caught:
        values(broker)
    assert "subscription" not in str(caught.value), "a batch read has none"
    assert values(broker, failOnDataLoss="false") == "acdh"


def test_ends_are_messages(broker: FakeBroker) -> None:
    compacted(broker)

    def between(start: str, end: str) -> str:
        points = (json.dumps({"t": {"-1": point}}) for point in (start, end))
        return values(
            broker, **dict(zip(("startingOffsets", "endingOffsets"), points, strict=True))
        )

    assert between("1:1", "latest") == "cdfg"
    assert between("1:1:2", "latest") == "dfg"
    assert between("1:2", "latest") == "fg"
    assert between("1:4", "latest") == "g"
    assert between("earliest", "1:0") == "a"
    assert between("earliest", "1:1:1") == "ac"
    assert between("earliest", "1:2") == "acd"
    assert between("1:1:1", "1:1:1") == "c"
    assert between("1:1", "1:3") == "cdf"
    with pytest.raises(OptionError, match="beyond the end"):
        between("earliest", "1:5")


def test_ends_are_times(broker: FakeBroker) -> None:
    compacted(broker)
    assert values(broker, startingTimestamp="2000") == "cdfg"
    assert values(broker, startingTimestamp="2500") == "fg"
    assert values(broker, endingTimestamp="2000") == "a"
    assert values(broker, startingTimestamp="1500", endingTimestamp="5000") == "cdf"


def test_partitions_topics_and_splits(broker: FakeBroker) -> None:
    topic = broker.create("t", 3)
    texts = "abcdefgh"
    for partition in (0, 1):
        sent = [entry(text.upper() if partition else text) for text in texts]
        broker.publish(topic, sent, partition)
        ledger = max(broker.topics[topic][partition].ledgers)
        remains = [(Position(ledger, n), sent[n]) for n in (1, 3, 5, 7)]
        broker.compact(topic, remains, partition)
        broker.publish(topic, [entry("+")], partition)
    broker.publish(topic, [entry("never", "compacted")], 2)
    whole = "bdfh+BDFH+nevercompacted"
    assert values(broker) == whole
    assert values(broker, minPartitions="7") == whole
    assert len(reader(broker, minPartitions="7").partitions()) == 7
    assert values(broker, maxRecordsPerPartition="2") == whole
    for number in range(10):
        broker.create(f"x{number}")
    assert values(broker, topicsPattern="t|x.*") == whole


def test_a_topic_of_which_nothing_is_left(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [entry("a")])
    broker.compact(topic, [])
    assert values(broker) == ""
    broker.publish(topic, [entry("b")])
    assert values(broker) == "b"


def test_filters_do_not_take_the_ids_of_the_compacted_ledger_for_the_messages(
    broker: FakeBroker,
) -> None:
    compacted(broker)
    options = Options.parse(
        {"adminUrl": broker.admin_url, "topic": "t", "readCompacted": "true"}, streaming=False
    )
    columns = ("entry_id", "message_id", "value")

    def where(*conditions: Condition) -> str:
        found = FilteringReader(options, RAW, columns)
        found._splits = type(found._splits)(options, RAW, columns, conditions)
        return "".join(row.partition("=")[2] for row in rows(found))

    assert where(Condition("entry_id", "equal", (1,), "entry_id")) == "cd"
    assert where(Condition("entry_id", "greater", (1,), "entry_id")) == "fg"


def test_a_topic_that_is_compacted_again_while_it_is_read(broker: FakeBroker) -> None:
    topic = compacted(broker)
    found = reader(broker)
    splits = found.partitions()
    broker.compact(topic, [])
    with pytest.raises(DataSourceError, match="compacted again"):
        [list(found.read(split)) for split in splits]


def test_it_is_for_messages_that_are_stored_and_not_for_streams() -> None:
    with pytest.raises(OptionError, match=r"read what was compacted with spark\.read"):
        Options.parse({"topic": "t", "readCompacted": "true"}, streaming=True)
    assert not Options.parse(
        {"topic": "t", "readCompacted": "false"}, streaming=True
    ).read_compacted
    with pytest.raises(OptionError, match="'readCompacted' is for messages, not for the view"):
        Options.parse({"topic": "t", "view": "cursors", "readCompacted": "true"})
    with pytest.raises(OptionError, match="'readCompacted': 'maybe' is neither true nor false"):
        Options.parse({"topic": "t", "readCompacted": "maybe"})
