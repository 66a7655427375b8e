"""Streams under Spark 4.1, called as its source runner does: ``latestOffset`` without arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.datasource.options.errors import DataSourceError, OptionError
from pulsark.datasource.options.options import Options
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.unlimited_stream import UnlimitedStreamReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.fake_broker import FakeBroker

RAW = layout_of(Options.parse({"topic": "t"}), dict)


def entry(text: str) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    return build_entry(metadata, text.encode())


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


class Query:
    """A query with a checkpoint; a new one on the same ``checkpoint`` is its next run."""

    def __init__(
        self, broker: FakeBroker, checkpoint: list[dict[str, Any]] | None = None, **raw: str
    ) -> None:
        given = {"adminUrl": broker.admin_url, "topic": "t", "startingOffsets": "earliest"}
        options = Options.parse(given | raw, streaming=True)
        self.reader = UnlimitedStreamReader(options, RAW, ("value",))
        self.checkpoint = checkpoint if checkpoint is not None else [self.reader.initialOffset()]

    def next(self) -> list[str]:
        """The rows of a batch; it is not committed before the next one is planned."""
        finder = self.reader._finder
        if finder is not None:
            finder._known._stale_at = 0.0
        start = self.checkpoint[-1]
        end = json.loads(json.dumps(self.reader.latestOffset()))
        if end == start:
            return []
        rows: list[str] = []
        for partition in self.reader.partitions(start, end):
            for found in self.reader.read(partition):
                rows += [value.decode() for value in found.column("value").to_pylist()]
        self.reader.commit(start)
        self.checkpoint.append(end)
        return rows


def test_each_batch_has_what_is_new(broker: FakeBroker) -> None:
    topic = broker.create("t")
    query = Query(broker)
    assert query.next() == []
    for text in ("a", "b"):
        broker.publish(topic, [entry(text)])
        assert query.next() == [text]
    assert query.next() == []


def test_a_restart_goes_on_where_the_checkpoint_is(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [entry("a")])
    first = Query(broker)
    assert first.next() == ["a"]
    first.reader.stop()
    again = Query(broker, first.checkpoint)
    assert again.next() == []
    broker.publish(topic, [entry("b")])
    assert again.next() == ["b"]
    again.reader.stop()
    broker.publish(topic, [entry("c")])
    assert Query(broker, again.checkpoint).next() == ["c"]


def test_a_restart_sees_that_the_topic_is_another_one(broker: FakeBroker) -> None:
    broker.publish(broker.create("t"), [entry("a")])
    first = Query(broker)
    assert first.next() == ["a"]
    broker.publish(broker.create("t"), [entry("new")])
    with pytest.raises(DataSourceError, match="created again"):
        Query(broker, first.checkpoint).next()
    assert Query(broker, first.checkpoint, failOnDataLoss="false").next() == ["new"]


@pytest.mark.parametrize("option", ["maxRowsPerTrigger", "minRowsPerTrigger", "maxBytesPerTrigger"])
def test_limits_are_refused(broker: FakeBroker, option: str) -> None:
    broker.create("t")
    with pytest.raises(OptionError, match=f"option '{option}' needs Spark 4.2"):
        Query(broker, **{option: "10"})
