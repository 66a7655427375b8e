"""``versionAsOf`` and ``timestampAsOf`` without a JVM, over the fake broker."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsark.datasource.options.errors import DataLossError, OptionError, TopicNotFoundError
from pulsark.datasource.options.options import Options
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.reader import PulsarkReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.position import Position
from tests.support.fake_broker import FakeBroker

RAW = layout_of(Options.parse({"topic": "t"}), dict)
T = "persistent://public/default/t"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


def publish(broker: FakeBroker, topic: str, texts: str, partition: int = -1) -> None:
    """One message each; its publish time is the character's number."""
    for text in texts:
        head = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=ord(text))
        broker.publish(topic, [build_entry(head, text.encode())], partition)


def read(broker: FakeBroker, **raw: Any) -> str:
    given = {"adminUrl": broker.admin_url, "pollTimeoutMs": "2000"}
    given |= {} if "topics" in raw else {"topic": "t"}
    reader = PulsarkReader(Options.parse(given | raw, streaming=False), RAW, ("value",))
    return "".join(
        row["value"].decode()
        for split in pickle.loads(pickle.dumps(reader.partitions()))
        for batch in reader.read(split)
        for row in batch.to_pylist()
    )


def remember(broker: FakeBroker, topic: str, query: str, **more: int) -> None:
    """The table is as it is now, for questions of the past."""
    table = {"version": 3, "timeMs": 50, "nowMs": 1000, "createdMs": 10, "later": []}
    files = broker.table_files(topic)
    broker.past[query] = table | {"laterWhole": True} | more | files


def lose(broker: FakeBroker, topic: str, ledger_id: int) -> None:
    """Trim ledgers; the answers name the files that they had in the end."""
    ledgers = broker.table_files(topic)["partitions"][0]["ledgers"]
    for ledger in ledgers:
        if ledger["ledgerId"] <= ledger_id:
            later = {"name": topic, "ledgers": [ledger]}
            for answer in broker.past.values():
                answer["later"].append(later)
    broker.topics[topic][-1].trim(ledger_id)


def sealed(broker: FakeBroker, tmp_path: Path) -> str:
    """Ledger 1 with ``abcd``, of which ``ab`` was sealed; ledger 2 with ``ef``, sealed later."""
    topic = broker.create("t")
    publish(broker, topic, "abcd")
    broker.seal(topic, 1, 2, str(tmp_path))
    remember(broker, topic, "version=3")
    for text in "abcdefg":
        remember(broker, topic, f"timestamp={ord(text)}")
    broker.seal(topic, 1, 2, str(tmp_path))
    broker.roll(topic)
    publish(broker, topic, "ef")
    return topic


def test_a_version_is_its_files(broker: FakeBroker, tmp_path: Path) -> None:
    topic = sealed(broker, tmp_path)
    assert read(broker, versionAsOf="3") == "ab"
    broker.topics[topic][-1].trim(2)
    assert read(broker, versionAsOf="3") == "ab"
    assert read(broker, versionAsOf="3", minPartitions="2") == "ab"
    assert read(broker, versionAsOf="3", maxRecordsPerPartition="1") == "ab"
    with pytest.raises(OptionError, match=r"'versionAsOf': persistent.*: there is no version 4"):
        read(broker, versionAsOf="4")


def test_a_time_is_what_was_sealed_and_what_was_published(
    broker: FakeBroker, tmp_path: Path
) -> None:
    sealed(broker, tmp_path)
    for text in "bcdefg":
        expected = "abcdef"[: "abcdefg".index(text) + 1]
        assert read(broker, timestampAsOf=str(ord(text))) == expected
    assert read(broker, timestampAsOf=str(ord("a"))) == "ab"  # it was sealed, whatever its time


def test_a_ledger_in_the_table_behind_one_that_is_not(broker: FakeBroker, tmp_path: Path) -> None:
    topic = broker.create("t", 2)
    publish(broker, topic, "ab", 0)
    broker.roll(topic, 0)
    publish(broker, topic, "cd", 0)
    publish(broker, topic, "x", 1)
    broker.seal(f"{topic}-partition-0", 2, 2, str(tmp_path))
    remember(broker, topic, "timestamp=100")
    publish(broker, topic, "e", 0)
    assert sorted(read(broker, timestampAsOf="100")) == list("abcd")
    remember(broker, topic, "timestamp=200")
    assert sorted(read(broker, timestampAsOf="200")) == list("abcdex")


def test_what_was_trimmed_and_may_have_been_there(broker: FakeBroker, tmp_path: Path) -> None:
    topic = sealed(broker, tmp_path)
    broker.topics[topic][-1].trim(1)
    for query in (str(ord("d")), str(ord("f"))):
        with pytest.raises(DataLossError, match=r"messages up to 1:3 were deleted"):
            read(broker, timestampAsOf=query)
    assert read(broker, timestampAsOf=str(ord("f")), failOnDataLoss="false") == "abef"
    remember(broker, topic, "timestamp=150")  # all of ledger 1 was in the table by then
    assert sorted(read(broker, timestampAsOf="150")) == list("abcdef")


def test_what_was_trimmed_comes_from_the_files_of_later_versions(
    broker: FakeBroker, tmp_path: Path
) -> None:
    topic = sealed(broker, tmp_path)
    lose(broker, topic, 1)
    for text in "bcdef":
        expected = "abcdef"[: "abcdef".index(text) + 1]
        assert "".join(sorted(read(broker, timestampAsOf=str(ord(text))))) == expected
    for answer in broker.past.values():
        answer["laterWhole"] = False
    with pytest.raises(DataLossError, match="were deleted"):
        read(broker, timestampAsOf=str(ord("d")))


def test_a_topic_without_a_table(broker: FakeBroker) -> None:
    topic = broker.create("t")
    publish(broker, topic, "abc")
    remember(broker, topic, "timestamp=98", version=-1)
    assert read(broker, timestampAsOf="98") == "ab"
    held = broker.topics[topic][-1]
    held.trimmed = Position(0, 7)
    with pytest.raises(DataLossError, match="it is not known whether some were there"):
        read(broker, timestampAsOf="98")


def test_several_topics_at_a_time(broker: FakeBroker) -> None:
    for name, texts in (("t", "ac"), ("u", "bd")):
        publish(broker, broker.create(name), texts)
    remember(broker, T, "timestamp=99", version=-1)
    assert sorted(read(broker, topics="t,u", timestampAsOf="99")) == list("abc")


def test_times_that_cannot_be(broker: FakeBroker) -> None:
    topic = broker.create("t")
    for query in ("5", "2000"):
        remember(broker, topic, f"timestamp={query}", version=-1)
    with pytest.raises(OptionError, match=r"2\.000.*is not over yet; at the broker it is .*1\.000"):
        read(broker, timestampAsOf="2000")
    with pytest.raises(OptionError, match=r"was made at 1970-01-01T00:00:00\.01"):
        read(broker, timestampAsOf="5")
    with pytest.raises(TopicNotFoundError, match="none does not exist"):
        read(broker, topics="none", versionAsOf="1")


def test_files_that_tasks_cannot_reach(broker: FakeBroker, tmp_path: Path) -> None:
    topic = sealed(broker, tmp_path)
    broker.past["version=3"]["directories"] = [str(tmp_path / "elsewhere")]
    with pytest.raises(DataLossError, match="which tasks must reach under the broker's paths"):
        read(broker, versionAsOf="3")
    assert topic == T


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"versionAsOf": "1", "timestampAsOf": "1"}, "set one of"),
        ({"versionAsOf": "x"}, "'x' is not a whole number from 0 up"),
        ({"timestampAsOf": "yesterday"}, "neither milliseconds since 1970"),
        ({"versionAsOf": "1", "readCompacted": "true"}, "'readCompacted' do not go together"),
        ({"timestampAsOf": "1", "endingOffsets": "latest"}, "'endingOffsets' do not go together"),
        ({"versionAsOf": "1", "readTableFiles": "false"}, "leave readTableFiles out"),
        ({"timestampAsOf": "1", "view": "topics"}, "is for messages and the view cursors"),
        ({"versionAsOf": "1", "view": "cursors"}, "is for messages, not for the view cursors"),
    ],
)
def test_wrong_options(raw: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Options.parse({"topic": "t"} | raw, streaming=False)


def test_a_version_is_of_one_topic_and_of_no_stream() -> None:
    with pytest.raises(OptionError, match="each has versions of its own"):
        Options.parse({"topics": "t,u", "versionAsOf": "1"}, streaming=False)
    with pytest.raises(OptionError, match="each has versions of its own"):
        Options.parse({"topicsPattern": "t.*", "versionAsOf": "1"}, streaming=False)
    for name in ("versionAsOf", "timestampAsOf"):
        with pytest.raises(OptionError, match=r"is for spark\.read, not for spark\.readStream"):
            Options.parse({"topic": "t", name: "1"}, streaming=True)
