"""The listener acknowledges what a finished batch has read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.datasource.admin_client import AdminClient
from pulsark.datasource.layout import layout_of
from pulsark.datasource.listener import QueryListener
from pulsark.datasource.options import Options
from pulsark.datasource.stream_reader import PulsarkStreamReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.fake_broker import FakeBroker

RAW = layout_of(Options.parse({"topic": "t"}), dict)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        topic = fake.create("t")
        head = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        fake.publish(topic, [build_entry(head, b"x")] * 3)
        yield fake


def progress(end: Any, newest: Any) -> Any:
    source = SimpleNamespace(endOffset=end, latestOffset=newest)
    return SimpleNamespace(progress=SimpleNamespace(sources=[source]))


def test_a_finished_batch_is_acknowledged_once(broker: FakeBroker) -> None:
    raw = {"adminUrl": broker.admin_url, "topic": "t", "subscription": "s"}
    options = Options.parse(raw | {"startingOffsets": "earliest"}, streaming=True)
    reader = PulsarkStreamReader(options, RAW, ("value",))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    held = broker.partition("persistent://public/default/t")
    assert held.subscriptions["s"][1] == -1
    listener = QueryListener()
    event = progress(json.dumps(end), json.dumps(reader.reportLatestOffset()))
    listener.onQueryProgress(event)
    assert held.subscriptions["s"] == held.last
    requests = len(broker.requests)
    listener.onQueryProgress(event)
    assert len(broker.requests) == requests
    reader.stop()


def test_what_is_no_query_of_ours_is_left_alone(broker: FakeBroker) -> None:
    listener = QueryListener()
    for newest in (None, "", "5", "[]", '{"version": 1}', '{"follows": {}}'):
        listener.onQueryProgress(progress('{"x": 1}', newest))
    wrong = json.dumps({"follows": {"subscription": "s", "adminUrl": broker.admin_url}})
    listener.onQueryProgress(progress('{"version": 7}', wrong))
    gone = json.dumps({"follows": {"subscription": "s", "adminUrl": "http://127.0.0.1:1"}})
    listener = QueryListener(lambda url, _: AdminClient(url, 0.01))
    place = {"topicId": "id", "read": "1:1"}
    end = {"version": 1, "partitions": {"persistent://public/default/t": place}}
    listener.onQueryProgress(progress(json.dumps(end), gone))
    assert broker.requests == []
