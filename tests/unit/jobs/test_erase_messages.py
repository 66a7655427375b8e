"""How ids travel from Spark to the broker, and how a job waits for the broker."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.jobs import broker_work, erase_messages
from pulsark.jobs.broker_work import work
from pulsark.jobs.erase_messages import _requests, grouped
from pulsark.jobs.job import JobError
from pulsark.wire.topic_name import TopicName

TOPIC = TopicName.parse("t")


def test_ids_are_grouped_as_the_admin_api_takes_them() -> None:
    ids = [(1, 0, -1), (1, 2, 0), (1, 2, 3), (4, 0, 1), (4, 0, -1), (4, 0, 2)]
    assert grouped(ids) == [[1, [[0, None], [2, [0, 3]]]], [4, [[0, None]]]]


def test_an_entry_is_never_in_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erase_messages, "IDS_A_REQUEST", 2)
    ids = [(1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 2, 0), (2, 2, 0)]
    assert list(_requests(iter(ids))) == [ids[:4], ids[4:]]
    assert list(_requests(iter([]))) == []


class FakeAdmin:
    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)
        self.calls: list[tuple[str, str]] = []

    def call(self, method: str, path: str, body: Any = None, *, what: str) -> Any:
        self.calls.append((method, path))
        return self.states.pop(0)


def test_work_is_begun_once_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_work, "POLL_SECONDS", 0.0)
    running = {"status": "RUNNING", "result": None, "error": ""}
    admin: Any = FakeAdmin(running, running, {"status": "SUCCESS", "result": {"n": 1}, "error": ""})
    assert work(admin, TOPIC, "compact") == {"n": 1}
    (put, path), *gets = admin.calls
    assert put == "PUT"
    assert gets == [("GET", path)] * 2


def test_work_that_fails_says_why() -> None:
    admin: Any = FakeAdmin({"status": "ERROR", "result": None, "error": "the disk is full"})
    with pytest.raises(JobError, match="erase of persistent://public/default/t: the disk is full"):
        work(admin, TOPIC, "erase")
