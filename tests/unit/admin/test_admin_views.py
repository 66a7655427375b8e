"""What is known of a topic as rows, for the views of Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsark.datasource.views import VIEWS
from tests.support.admin_api import NAMESPACE, AdminApi, subscription_path

T = "persistent://public/default/t"
NOW = 1_700_000_000_000


def view(api: AdminApi, name: str, topic: str = "t") -> list[dict[str, Any]]:
    found = api.get(f"{NAMESPACE}/{topic}/views/{name}")
    assert found.status == 200, found.body
    rows: list[dict[str, Any]] = found.json
    return rows


def subscribe(api: AdminApi, name: str = "s") -> None:
    api.put(subscription_path("t", name), {"ledgerId": -1, "entryId": -1})


@pytest.mark.parametrize("name", VIEWS)
def test_rows_have_the_columns_of_the_view(api: AdminApi, name: str) -> None:
    api.publish("t", b"a", publish_time=NOW)
    api.connect_producer("t")
    api.connect_consumer("t", "s")
    schema = {"type": "JSON", "schema": '{"type":"record","name":"R","fields":[]}'}
    assert api.post("/admin/v2/schemas/public/default/t/schema", schema).status == 200
    (row,) = view(api, name)
    assert set(row) == {column.name for column in VIEWS[name]}
    assert row["topic"] == T


def test_topics(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t", {"team": "a"})
    (empty,) = view(api, "topics")
    assert (empty["first_message_id"], empty["last_publish_time"]) == (None, None)
    api.publish("t", b"a", b"b", publish_time=NOW)
    (row,) = view(api, "topics")
    ledger = row["first_message_id"].split(":")[0]
    assert row["last_message_id"] == f"{ledger}:1"
    assert (row["tenant"], row["namespace"], row["partition"]) == ("public", "default", -1)
    assert (row["entries"], row["ledgers"], row["subscriptions"]) == (2, 1, 0)
    assert (row["properties"], row["last_publish_time"]) == ({"team": "a"}, NOW)


def test_each_partition_has_a_row(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    rows = view(api, "topics", "p")
    assert [(row["topic"][-2:], row["partition"]) for row in rows] == [("/p", 0), ("/p", 1)]


def test_the_unacknowledged_set(api: AdminApi) -> None:
    subscribe(api)
    api.publish("t", *[bytes(40)] * 6, batch=3)
    topic = api.topic("t")
    (ledger_id, _), state = topic.ledger.first_position(), topic.subscriptions["s"].cursor.state

    def ack(entry_id: int, *left: int) -> None:
        mask = sum(1 << index for index in left)
        position = type(topic.ledger.last_confirmed)(ledger_id, entry_id)
        state.ack(position, [mask] if left else None, 3)

    def unacked() -> list[tuple[int, int, list[int] | None]]:
        (row,) = view(api, "cursors")
        return [
            (run["first_entry_id"], run["last_entry_id"], run["batch_indexes"])
            for run in row["unacked"]
            if run["ledger_id"] == ledger_id
        ]

    assert unacked() == [(0, 5, None)]
    ack(2)
    assert unacked() == [(0, 1, None), (3, 5, None)]
    ack(4, 0, 2)
    ack(0, 1)
    assert unacked() == [(0, 0, [1]), (1, 1, None), (3, 3, None), (4, 4, [0, 2]), (5, 5, None)]
    for entry_id in range(6):
        ack(entry_id)
    assert unacked() == []


def test_too_many_ranges_are_refused(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsark.admin.views.UNACKED_RANGES_MAX", 0)
    subscribe(api)
    assert view(api, "cursors")[0]["unacked"] == []
    api.publish("t", b"a")
    refused = api.get(f"{NAMESPACE}/t/views/cursors")
    assert refused.status == 413
    assert "Subscription s of" in refused.reason


def test_backlog(api: AdminApi) -> None:
    subscribe(api)
    (row,) = view(api, "backlog")
    assert (row["backlog_entries"], row["oldest_unacked_time"], row["lag_seconds"]) == (0, None, 0)
    api.publish("t", b"a", publish_time=NOW - 1500)
    api.publish("t", b"b", publish_time=NOW)
    (row,) = view(api, "backlog")
    assert (row["backlog_entries"], row["oldest_unacked_time"]) == (2, NOW - 1500)
    assert row["lag_seconds"] == 1.5
    assert row["backlog_bytes"] > 0


def test_clients(api: AdminApi) -> None:
    assert view(api, "producers", "none") == [] if api.put(f"{NAMESPACE}/none") else None
    api.connect_producer("t")
    api.connect_consumer("t", "s")
    (producer,) = view(api, "producers")
    (consumer,) = view(api, "consumers")
    assert (producer["producer_name"], producer["metadata"]) == ("producer-1", {"app": "test"})
    assert (consumer["consumer_name"], consumer["subscription"]) == ("consumer-1", "s")
    assert consumer["connected_at"] == api.clock.now_ms()
    assert consumer["address"] == "/10.0.0.1:5000"
    (cursor,) = view(api, "cursors")
    assert (cursor["type"], cursor["consumers"], cursor["durable"]) == ("Exclusive", 1, True)


def test_schemas(api: AdminApi) -> None:
    assert view(api, "schemas") == []
    definition = {"type": "record", "name": "R", "fields": []}
    body = {"type": "AVRO", "schema": json.dumps(definition), "properties": {"k": "v"}}
    assert api.post("/admin/v2/schemas/public/default/t/schema", body).status == 200
    (row,) = view(api, "schemas")
    assert (row["version"], row["type"], row["properties"]) == (0, "AVRO", {"k": "v"})
    assert json.loads(row["definition"]) == definition


def test_what_is_not_there(api: AdminApi) -> None:
    assert api.get(f"{NAMESPACE}/none/views/topics").status == 404
    api.publish("t", b"a")
    wrong = api.get(f"{NAMESPACE}/t/views/cursor")
    assert wrong.status == 404
    assert "cursors" in wrong.reason
