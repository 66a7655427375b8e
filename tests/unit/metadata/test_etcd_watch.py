"""What a watch of etcd tells, whatever becomes of its connection: nothing is left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from pulsark.metadata.etcd import messages, watch
from pulsark.metadata.etcd.connection import BrokenError
from pulsark.metadata.etcd.gateway import RefusedError
from pulsark.metadata.etcd.layout import Layout
from pulsark.metadata.etcd.marks import Marks
from pulsark.metadata.etcd.messages import TxnAnswer
from pulsark.metadata.etcd.watch import Watch

LAYOUT = Layout("")


class FakeServer:
    """Answers each watch with a list, and then ends it; the last one goes on."""

    def __init__(self, *answers: list[messages.Json]) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []
        self.refusals = 0
        """How many reads are refused."""
        self.heard: list[str] = []
        self.watch = Watch(
            cast(Any, self), cast(Any, self), LAYOUT, Marks(), self.heard.extend,
            lambda: self.heard.append("missed"),
        )  # fmt: skip

    def on_moved(self, listener: object) -> None:
        pass

    async def read(self, operations: object, deadline: float) -> TxnAnswer:
        if self.refusals:
            self.refusals -= 1
            raise RefusedError(8, "etcdserver: too many requests")
        return TxnAnswer(True, 90, [])

    async def stream(
        self, method: str, body: Any, seconds: float
    ) -> AsyncGenerator[messages.Json, None]:
        self.asked.append(int(body["create_request"]["start_revision"]))
        for answer in self._answers.pop(0):
            yield answer
        if not self._answers:
            await asyncio.Event().wait()
        raise BrokenError("cut")

    async def followed(self) -> None:
        """Until the last list is told."""
        self.watch.start(10)
        async with asyncio.timeout(10):
            while self._answers:  # noqa: ASYNC110 - each turn of the loop is a step of it
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.watch.close()


def changes(revision: int, *paths: str, fragment: bool = False) -> messages.Json:
    events = [
        {"kv": {"key": messages._text(LAYOUT.key(path)), "mod_revision": str(revision)}}
        for path in paths
    ]
    return {"events": events, "fragment": fragment}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PAUSE_SECONDS", 0)


def test_a_revision_that_was_cut_within_is_told_again_from_its_beginning() -> None:
    server = FakeServer(
        [changes(11, "/a"), changes(12, "/b", fragment=True)],
        [changes(12, "/b", fragment=True), changes(12, "/c"), changes(13, "/d")],
        [],
    )
    asyncio.run(server.followed())
    assert server.asked == [11, 12, 14]
    assert server.heard == ["/a", "/b", "/b", "/c", "/d"]


def test_after_a_compaction_all_hear_that_changes_were_missed_before_any_later_one() -> None:
    server = FakeServer(
        [changes(11, "/a"), {"canceled": True, "compact_revision": "80"}],
        [changes(91, "/b")],
        [],
    )
    asyncio.run(server.followed())
    assert server.asked == [11, 91, 92]
    assert server.heard == ["/a", "missed", "/b"]


def test_a_read_that_etcd_refuses_does_not_end_the_watch_of_a_session_that_lives() -> None:
    """What was kept of others' changes would be outdated from then on."""
    server = FakeServer([{"canceled": True, "compact_revision": "80"}], [changes(91, "/b")], [])
    server.refusals = 2
    asyncio.run(server.followed())
    assert server.heard == ["missed", "/b"]


def test_an_event_that_cannot_be_read_counts_as_missed() -> None:
    server = FakeServer([{"events": [{"kv": {"key": "?", "mod_revision": "x"}}]}], [], [])
    asyncio.run(server.followed())
    assert server.asked == [11, 91, 91]
    assert server.heard == ["missed"]
