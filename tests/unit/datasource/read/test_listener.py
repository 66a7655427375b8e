"""The listener acknowledges what a finished batch has read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pulsark.datasource.admin.client import SparkAdmin
from pulsark.datasource.options.options import Options
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.listener import QueryListener
from pulsark.datasource.read.stream_reader import PulsarkStreamReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.fake_broker import FakeBroker

ENTRY = build_entry(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x")
ENTRY_BYTES = len(ENTRY)
RAW = layout_of(Options.parse({"topic": "t"}), dict)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        topic = fake.create("t")
        fake.publish(topic, [ENTRY] * 3)
        yield fake


def progress(end: Any, newest: Any) -> Any:
    source = SimpleNamespace(endOffset=end, latestOffset=newest)
    return SimpleNamespace(
        progress=SimpleNamespace(
            sources=[source],
            id="id",
            runId="run",
            name="orders",
            batchId=3,
            inputRowsPerSecond=float("nan"),
            processedRowsPerSecond=2.0,
        )
    )


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
    broker.requests.clear()
    listener.onQueryProgress(event)
    assert not [request for request in broker.requests if "acknowledge" in request]
    (said,) = broker.progress.values()
    assert said == {
        "name": "orders",
        "id": "id",
        "runId": "run",
        "batchId": 3,
        "inputRowsPerSecond": None,
        "processedRowsPerSecond": 2.0,
    }
    assert len(broker.claims.running()) == 1
    listener.onQueryTerminated(SimpleNamespace(runId="run"))  # type: ignore[arg-type]
    assert broker.claims.running() == []
    reader.stop()


def test_a_query_without_a_subscription_says_how_far_it_is(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.datasource.read.following.RENEW_SECONDS", 0.01)
    raw = {"adminUrl": broker.admin_url, "topic": "t", "startingOffsets": "earliest"}
    reader = PulsarkStreamReader(Options.parse(raw, streaming=True), RAW, ("value",))
    start = reader.initialOffset()
    limit = ReadMaxRows(2)
    end = reader.latestOffset(start, limit)
    assert reader.reportLatestOffset()["behind"] == {
        "entries": 1, "bytes": ENTRY_BYTES, "minEntries": 1, "avgEntries": 1.0, "maxEntries": 1,
    }  # fmt: skip
    QueryListener().onQueryProgress(
        progress(json.dumps(end), json.dumps(reader.reportLatestOffset()))
    )
    held = broker.partition("persistent://public/default/t")
    assert held.subscriptions == {}
    assert len(broker.progress) == 1
    (query,) = broker.claims.running()
    assert list(query.read.values()) == [(held.last.ledger_id, 1)]
    query.read.clear()
    reader.latestOffset(end, limit)  # without a listener it is told so with the next batch
    assert query.topics == {"persistent://public/default/t"}
    deadline = time.monotonic() + 60
    while list(query.read.values()) != [(held.last.ledger_id, 1)]:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    reader.stop()
    assert broker.claims.running() == []


def test_what_is_no_query_of_ours_is_left_alone(broker: FakeBroker) -> None:
    listener = QueryListener()
    for newest in (None, "", "5", "[]", '{"version": 1}', '{"follows": {}}'):
        listener.onQueryProgress(progress('{"x": 1}', newest))
    said = {"subscription": "s", "query": "q", "adminUrl": broker.admin_url}
    wrong = json.dumps({"follows": said})
    listener.onQueryProgress(progress('{"version": 7}', wrong))
    gone = json.dumps({"follows": {**said, "adminUrl": "http://127.0.0.1:1"}})
    listener = QueryListener(lambda url, _: SparkAdmin(url, 0.01))
    place = {"topicId": "id", "read": "1:1"}
    end = {"version": 1, "partitions": {"persistent://public/default/t": place}}
    listener.onQueryProgress(progress(json.dumps(end), gone))
    assert broker.requests == []
