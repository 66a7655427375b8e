"""Requests about all topics: however many there are, the event loop has its turns in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import pytest
from pyroaring import BitMap

from pulsark.admin.pulsar import metrics
from pulsark.admin.spark import views
from pulsark.dispatch.subscription import unacked_runs
from pulsark.dispatch.topic.cursors import TopicCursors
from pulsark.dispatch.topic.topic import Topic
from pulsark.limits import METRICS_PER_TURN_MAX, SUBSCRIPTIONS_PER_TURN_MAX, TOPICS_PER_TURN_MAX
from pulsark.storage.cursor.history import CursorChange
from pulsark.storage.cursor.state import CursorState
from pulsark.wire.position import EARLIEST
from tests.support.admin_api import AdminApi, Answer, subscription_path

TOPICS = 4 * TOPICS_PER_TURN_MAX + 5
NAMESPACE = "persistent://public/default"


@pytest.fixture
def crowded(api: AdminApi) -> AdminApi:
    """Many topics are loaded."""
    for number in range(TOPICS):
        api.topic(f"{NAMESPACE}/t{number}")
    return api


def longest_turn(api: AdminApi, looked_at: list[Any], request: Any) -> tuple[Answer, int]:
    """The answer, and what was looked at in the turn in which that was most."""

    async def run() -> tuple[Answer, int]:
        asking = asyncio.create_task(request)
        counts = [0]
        while not asking.done():
            await asyncio.sleep(0)
            counts.append(len(looked_at))
        return await asking, max(after - before for before, after in pairwise(counts))

    return api.run(run())


@pytest.mark.parametrize("path", ["topics", "load-report"])
def test_broker_statistics(crowded: AdminApi, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    looked_at: list[Any] = []
    one = crowded.stats.topic
    monkeypatch.setattr(
        crowded.stats, "topic", lambda topic: [looked_at.append(topic), one(topic)][1]
    )
    request = crowded._call("GET", f"/admin/v2/broker-stats/{path}", b"", {})
    answer, most = longest_turn(crowded, looked_at, request)
    assert len(looked_at) == TOPICS
    assert most <= TOPICS_PER_TURN_MAX
    found = json.loads(answer.body)
    if path == "load-report":
        assert found["numTopics"] == TOPICS
    else:
        bundles = found["public/default"].values()
        assert sum(len(domains["persistent"]) for domains in bundles) == TOPICS


@pytest.mark.parametrize("by_topic", [True, False])
def test_statistics_for_metrics(
    crowded: AdminApi, monkeypatch: pytest.MonkeyPatch, by_topic: bool
) -> None:
    settings = replace(crowded.broker.settings, exposeTopicLevelMetricsInPrometheus=by_topic)
    monkeypatch.setattr(crowded.broker, "settings", settings)
    looked_at: list[Any] = []
    one = crowded.stats.topic
    monkeypatch.setattr(
        crowded.stats, "topic", lambda topic: [looked_at.append(topic), one(topic)][1]
    )
    request = crowded._call("GET", "/metrics", b"", {})
    answer, most = longest_turn(crowded, looked_at, request)
    assert most <= TOPICS_PER_TURN_MAX
    lines = answer.body.decode().splitlines()
    assert f'pulsar_broker_topics_count{{cluster="standalone"}} {TOPICS}' in lines
    assert sum(line.startswith("pulsar_rate_in{") for line in lines) == (TOPICS if by_topic else 1)


def test_metrics(crowded: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    number = metrics._number
    monkeypatch.setattr(metrics, "_number", lambda value: [made.append(value), number(value)][1])
    request = crowded._call("GET", "/metrics", b"", {})
    answer, most = longest_turn(crowded, made, request)
    assert len(made) > 2 * METRICS_PER_TURN_MAX
    assert most <= METRICS_PER_TURN_MAX
    lines = answer.body.decode().splitlines()
    assert sum(line.startswith("pulsar_rate_in{") for line in lines) == TOPICS


def test_a_policy_of_the_namespace(crowded: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    one = Topic.set_policies
    monkeypatch.setattr(
        Topic, "set_policies", lambda self, policies: [told.append(self), one(self, policies)][1]
    )
    path = "/admin/v2/namespaces/public/default/maxConsumersPerTopic"
    request = crowded._call("POST", path, b"7", {"content-type": "application/json"})
    answer, most = longest_turn(crowded, told, request)
    assert answer.status == 204
    assert len(told) >= TOPICS
    assert most <= 2 * TOPICS_PER_TURN_MAX  # the request, and who watches the store
    assert {t.policies.max_consumers for t in crowded.broker.topics.loaded()} == {7}


def test_of_two_changes_of_a_policy_the_later_one_holds(crowded: AdminApi) -> None:
    async def change() -> None:
        broker = crowded.broker
        changes = []
        for value in range(1, 5):
            path = "/admin/v2/namespaces/public/default/maxConsumersPerTopic"
            sent = {"content-type": "application/json"}
            request = crowded._call("POST", path, b"%d" % value, sent)
            changes.append(asyncio.create_task(request))
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.gather(*changes)
        for _ in range(50):
            await asyncio.sleep(0)
        assert {t.policies.max_consumers for t in broker.topics.loaded()} == {4}

    crowded.run(change())


SUBSCRIPTIONS = 3 * TOPICS_PER_TURN_MAX


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("stats", "_subscription_of"),
        ("internalStats", "_internal_cursor"),
    ],
)
def test_statistics_of_a_topic_with_many_subscriptions(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch, path: str, part: str
) -> None:
    registry = api.topic(f"{NAMESPACE}/t").registry

    async def subscribe() -> None:
        for number in range(SUBSCRIPTIONS):
            await registry.create(f"s{number}", EARLIEST, {}, durable=True)

    api.run(subscribe())
    made: list[Any] = []
    one = getattr(api.stats, part)
    monkeypatch.setattr(
        api.stats, part, lambda *given, **named: [made.append(given), one(*given, **named)][1]
    )
    request = api._call("GET", f"/admin/v2/persistent/public/default/t/{path}", b"", {})
    answer, most = longest_turn(api, made, request)
    assert len(made) == SUBSCRIPTIONS
    assert most <= TOPICS_PER_TURN_MAX
    found = json.loads(answer.body)
    shown = found["cursors"] if path == "internalStats" else found["subscriptions"]
    assert shown.keys() == {f"s{number}" for number in range(SUBSCRIPTIONS)}


def with_holes(api: AdminApi, holes: int) -> CursorState:
    """A subscription of which every second message is acknowledged."""
    assert api.put(subscription_path("t", "s"), {"ledgerId": -1, "entryId": -1}).status == 204
    topic = api.topic(f"{NAMESPACE}/t")
    api.publish("t", *[b"%d" % number for number in range(2 * holes)])
    state = topic.subscriptions["s"].cursor.state
    ledger_id = topic.ledger.first_position().ledger_id
    state.add_entries(ledger_id, BitMap(range(1, 2 * holes, 2)))
    return state


def test_what_a_subscription_has_not_acknowledged(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacked_runs, "RUNS_PER_TURN_MAX", 5)
    state = with_holes(api, 42)
    looked_at: list[Any] = []
    one = CursorState._run_end
    monkeypatch.setattr(
        CursorState,
        "_run_end",
        lambda self, *of: [looked_at.append(of), one(self, *of)][1],
    )
    request = api._call("GET", "/admin/v2/persistent/public/default/t/views/cursors", b"", {})
    answer, most = longest_turn(api, looked_at, request)
    assert len(json.loads(answer.body)[0]["unacked"]) == state.backlog() == 42
    assert len(looked_at) == 42
    assert most <= 5


@pytest.mark.parametrize(
    ("method", "tail"), [("GET", "position/30"), ("POST", "skip/30"), ("GET", "position/43")]
)
def test_a_place_among_holes_needs_no_walk(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch, method: str, tail: str
) -> None:
    state = with_holes(api, 42)
    monkeypatch.delattr(CursorState, "unacked_runs")
    path = f"{subscription_path('t', 's')}/{tail}"
    answer = api.get(path) if method == "GET" else api.post(path)
    if tail == "skip/30":
        assert (answer.status, state.mark_delete.entry_id) == (204, 59)
    elif tail == "position/30":
        assert answer.body == b"58"
    else:
        assert answer.status == 404


def test_a_walk_goes_on_where_it_was_when_the_cursor_moves(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacked_runs, "RUNS_PER_TURN_MAX", 2)
    state = with_holes(api, 10)

    async def walk() -> list[int]:
        found = []
        async for first, _ in unacked_runs.unacked_runs(state):
            found.append(first.entry_id)
            if first.entry_id == 2:
                state.ack_cumulative(first._replace(entry_id=9))
            elif first.entry_id == 12:
                state.reset(first._replace(entry_id=0))
        return found

    assert api.run(walk()) == [0, 2, 10, 12, 13]


def test_views_of_very_many_subscriptions(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2 * SUBSCRIPTIONS_PER_TURN_MAX + 3):
        api.put(subscription_path("t", f"s{number}"), {"ledgerId": -1, "entryId": -1})
    looked_at: list[Any] = []
    one = views._cursor_name
    monkeypatch.setattr(views, "_cursor_name", lambda of: [looked_at.append(of), one(of)][1])
    for view in ("cursors", "backlog"):
        looked_at.clear()
        path = f"/admin/v2/persistent/public/default/t/views/{view}"
        answer, most = longest_turn(api, looked_at, api._call("GET", path, b"", {}))
        assert len(json.loads(answer.body)) == len(looked_at)
        assert len(looked_at) == 2 * SUBSCRIPTIONS_PER_TURN_MAX + 3
        assert most <= SUBSCRIPTIONS_PER_TURN_MAX


def test_very_many_subscriptions_as_they_were(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * SUBSCRIPTIONS_PER_TURN_MAX + 3
    for number in range(count):
        api.put(subscription_path("t", f"s{number}"), {"ledgerId": -1, "entryId": -1})
    made: list[Any] = []
    one = CursorState.of
    monkeypatch.setattr(CursorState, "of", lambda *given: [made.append(given), one(*given)][1])
    path = f"/admin/v2/persistent/public/default/t/views/cursors?at={api.clock.now_ms()}"
    answer, most = longest_turn(api, made, api._call("GET", path, b"", {}))
    assert len(json.loads(answer.body)) == len(made) == count
    assert most <= SUBSCRIPTIONS_PER_TURN_MAX


def test_a_long_history_of_cursors_keeps_what_is_shown(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "CURSOR_CHANGES_MAX", 5)
    alive: WeakSet[Any] = WeakSet()
    most = 0

    class Name(str):
        """It can be followed as long as anything has it."""

    async def changes(self: TopicCursors) -> AsyncIterator[CursorChange]:
        nonlocal most
        for number in range(100):
            name = Name(f"s{number}")
            alive.add(name)
            most = max(most, len(alive))
            yield CursorChange(name, number, "seek", EARLIEST, 0)

    monkeypatch.setattr(TopicCursors, "changes", changes)
    api.topic(f"{NAMESPACE}/t")
    path = "/admin/v2/persistent/public/default/t/views/cursor_history"
    found = [row["time"] for row in api.get(path).json]
    assert found == [95, 96, 97, 98, 99]
    assert most <= 7  # one on its way in, one on its way out
