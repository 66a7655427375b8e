"""What is known of a topic as rows, for the views of Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsark.admin_client.client import AdminClient, AdminError, Answer
from pulsark.datasource.admin.topics import TopicCalls
from pulsark.datasource.read.views import VIEWS, _cell
from pulsark.wire.topic_name import TopicName
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
    row = view(api, name)[0]
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
    (row,) = view(api, "cursors")
    (compact,) = view(api, "cursors?masks=true")
    assert [run["batch_mask"] for run in compact["unacked"]] == ["2", None, None, "5", None]
    assert _cell(compact["unacked"], False) == _cell(row["unacked"], False)
    assert _cell(row["unacked"], False)[0] == (ledger_id, 0, 0, [1])
    for entry_id in range(6):
        ack(entry_id)
    assert unacked() == []


def test_too_many_ranges_are_refused(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsark.admin.spark.views.UNACKED_RANGES_MAX", 0)
    subscribe(api)
    assert view(api, "cursors")[0]["unacked"] == []
    api.publish("t", b"a")
    refused = api.get(f"{NAMESPACE}/t/views/cursors")
    assert refused.status == 413
    assert "up to s have more than 0 unacknowledged ranges" in refused.reason


@pytest.mark.parametrize(
    ("limit", "most", "what"),
    [("UNACKED_RANGES_MAX", 3, "ranges"), ("UNACKED_BYTES_MAX", 200, "bytes of ranges")],
)
def test_the_limits_are_those_of_all_subscriptions_in_an_answer(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, what: str
) -> None:
    monkeypatch.setattr(f"pulsark.admin.spark.views.{limit}", most)
    for name in ("a", "b c"):
        subscribe(api, name)
    api.publish("t", b"a", b"b", b"c")
    first = api.topic("t").ledger.first_position()
    for subscription in api.topic("t").subscriptions.values():
        subscription.cursor.state.ack(type(first)(first.ledger_id, 1), None, None)
    refused = api.get(f"{NAMESPACE}/t/views/cursors")
    assert refused.status == 413
    assert f"up to b c have more than {most} unacknowledged {what}" in refused.reason
    past = f"at={api.clock.now_ms()}"
    for query in ("subscription=b%20c", f"subscription=b%20c&{past}"):
        (row,) = view(api, f"cursors?{query}")
        assert row["subscription"] == "b c"
        assert [(run["first_entry_id"], run["last_entry_id"]) for run in row["unacked"]] == (
            [(0, 2)] if past in query else [(0, 0), (2, 2)]
        )
    assert view(api, "cursors?subscription=none") == []


def test_the_data_source_asks_for_one_subscription_at_a_time_if_all_are_too_many(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client(AdminClient):
        def request(self, method: str, path: str, *_: Any, **__: Any) -> Answer:
            found = api.call(method, f"/admin/v2{path}")
            return Answer(found.status, found.body)

    topics = TopicCalls(Client("http://broker"))
    for name in ("a", "b c+/1"):
        subscribe(api, name)
    api.publish("t", b"a")
    rows = topics.view(TopicName.parse(T), "cursors")
    assert [row["subscription"] for row in rows] == ["a", "b c+/1"]
    monkeypatch.setattr("pulsark.admin.spark.views.UNACKED_RANGES_MAX", 1)
    assert topics.view(TopicName.parse(T), "cursors") == rows
    monkeypatch.setattr("pulsark.admin.spark.views.UNACKED_RANGES_MAX", 0)
    with pytest.raises(AdminError, match="up to a have more than 0 unacknowledged ranges"):
        topics.view(TopicName.parse(T), "cursors")


def test_very_many_indexes_are_refused_and_shown_as_masks(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.admin.spark.views.UNACKED_INDEXES_MAX", 3)
    subscribe(api)
    api.publish("t", bytes(40), bytes(40), batch=3)
    state = api.topic("t").subscriptions["s"].cursor.state
    first = api.topic("t").ledger.first_position()
    state.ack(first, [0b011], 3)
    assert view(api, "cursors")[0]["unacked"][0]["batch_indexes"] == [0, 1]
    state.ack(type(first)(first.ledger_id, 1), [0b110], 3)
    refused = api.get(f"{NAMESPACE}/t/views/cursors")
    assert refused.status == 413
    assert "have more than 3 unacknowledged indexes of batches" in refused.reason
    (row,) = view(api, "cursors?masks=true")
    assert [run["batch_mask"] for run in row["unacked"]] == ["3", "6"]


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


# -- the past --------------------------------------------------------------------------------------


def ack_ids(api: AdminApi, *ids: dict[str, int]) -> int:
    return api.post(f"{subscription_path('t', 's')}/acknowledge", list(ids)).status


def later(api: AdminApi) -> int:
    """The time now; what comes is after it."""
    now = api.clock.now_ms()
    api.clock.ms += 1000
    return now


def test_a_subscription_is_restored_to_a_past_state(api: AdminApi) -> None:
    subscribe(api)
    api.publish("t", *[bytes(40)] * 6, batch=3)
    ledger_id = api.topic("t").ledger.first_position().ledger_id
    ids = [{"ledgerId": ledger_id, "entryId": i} for i in range(6)]
    before = later(api)
    assert ack_ids(api, ids[1], {**ids[3], "batchIndex": 1}) == 204
    (then,) = view(api, "cursors")
    acked = later(api)
    assert ack_ids(api, *ids) == 204
    assert view(api, "cursors")[0]["unacked"] == []

    path = f"{NAMESPACE}/t/views/cursors"
    (past,) = api.get(f"{path}?at={acked}").json
    assert past["unacked"] == then["unacked"]
    assert [run["batch_indexes"] for run in past["unacked"]] == [None, None, [0, 2], None]
    assert past["backlog"] == 5
    assert api.get(f"{path}?at={before}").json[0]["backlog"] == 6

    assert api.post(f"{subscription_path('t', 's')}/restore/{acked}").status == 204
    assert view(api, "cursors")[0]["unacked"] == then["unacked"]
    assert api.delete(subscription_path("t", "s")).status == 204
    assert api.post(f"{subscription_path('t', 's')}/restore/{acked}").status == 204
    assert view(api, "cursors")[0]["unacked"] == then["unacked"]


def test_the_history_of_cursors(api: AdminApi) -> None:
    subscribe(api)
    api.publish("t", b"a", b"b", b"c")
    ledger_id = api.topic("t").ledger.first_position().ledger_id
    later(api)
    ack_ids(api, {"ledgerId": ledger_id, "entryId": 0}, {"ledgerId": ledger_id, "entryId": 2})
    api.delete(subscription_path("t", "s"))
    changes = [(row["change"], row["acked_entries"]) for row in view(api, "cursor_history")]
    assert changes == [("known", 0), ("acknowledged", 1), ("deleted", 0)]


def test_times_that_nobody_knows(api: AdminApi) -> None:
    subscribe(api)
    path = f"{NAMESPACE}/t/views/cursors"
    refused = api.get(f"{path}?at=1")
    assert refused.status == 412
    assert "known since" in refused.reason
    assert api.get(f"{path}?at={api.clock.now_ms() + 1000}").status == 412
    assert api.get(f"{NAMESPACE}/t/views/topics?at=1").status == 400
    gone = api.post(f"{subscription_path('t', 'none')}/restore/{api.clock.now_ms()}")
    assert (gone.status, "did not exist" in gone.reason) == (404, True)


def test_acknowledging_one_by_one_is_checked(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(api)
    api.publish("t", b"a")
    ledger_id = api.topic("t").ledger.first_position().ledger_id
    assert ack_ids(api, {"ledgerId": ledger_id, "entryId": 0, "batchIndex": 5}) == 404
    assert ack_ids(api, {"entryId": 0}) == 400
    monkeypatch.setattr("pulsark.admin.pulsar.subscriptions.ADMIN_ACKS_MAX", 1)
    assert ack_ids(api, *[{"ledgerId": ledger_id, "entryId": 0}] * 2) == 413
    api.connect_consumer("t", "s")
    assert ack_ids(api, {"ledgerId": ledger_id, "entryId": 0}) == 412
