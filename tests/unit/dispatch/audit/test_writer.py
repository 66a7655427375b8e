"""The writer of the audit: in order, again after failures, and at the end of the broker."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from pulsark.dispatch.audit.left_over import AuditLeftOver
from pulsark.dispatch.audit.writer import AuditWriter
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import AUDIT_LEFT
from pulsark.metadata.store import ABSENT
from pulsark.security.audit.audit import Audit
from pulsark.security.audit.chain import NOTHING, AuditRecord, Head, checked
from pulsark.security.audit.limits import (
    AUDIT_CLOSE_SECONDS,
    AUDIT_EVENTS_AT_ONCE,
    AUDIT_EVENTS_MAX,
    AUDIT_LEFT_BYTES_MAX,
    AUDIT_STUCK_SECONDS,
)
from pulsark.security.principal import Origin
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation


class Topic:
    """Stores records; may refuse, forget to say that it has stored, or be silent."""

    def __init__(self) -> None:
        self.stored: list[AuditRecord] = []
        self.is_open = False
        self.opened = 0
        self.failing = 0
        self.stores_before_failing = 0
        self.silent = False
        self.opens = True
        self.largest = 0

    async def open(self) -> Head:
        if not self.opens:
            raise ClientError(ServerError.ServiceNotReady, "its broker has gone")
        self.opened += 1
        self.is_open = True
        return self.stored[-1].head if self.stored else NOTHING

    async def publish(self, records: Sequence[AuditRecord], times_ms: Sequence[int]) -> None:
        self.largest = max(self.largest, len(records))
        if self.silent:
            await asyncio.Event().wait()
        if self.failing:
            self.failing -= 1
            self.stored += records[: self.stores_before_failing]
            raise ClientError(ServerError.PersistenceError, "the disk is gone")
        self.stored += records

    def close(self) -> None:
        self.is_open = False

    @property
    def read(self) -> list[dict[str, Any]]:
        return [json.loads(each.payload) for each in self.stored]

    @property
    def operations(self) -> list[str]:
        return [each["operation"] for each in self.read]


Test = Callable[[Audit, Topic, AuditWriter], Coroutine[Any, Any, None]]


def run(test: Test, topic: Topic | None = None, tree: MemoryTree | None = None) -> Topic:
    topic = topic or Topic()
    tree = tree or MemoryTree()
    with Simulation() as sim:
        clock = sim.runtime(SimDisk()).clock

        async def main() -> None:
            audit = Audit(clock, "c", "b")
            writer = AuditWriter(
                audit, topic, clock, AuditLeftOver(MemoryMetadataStore(tree), lambda: "b")
            )
            writer.start()
            await test(audit, topic, writer)

        sim.run(main())
    return topic


async def settle() -> None:
    await asyncio.sleep(0.001)


def test_events_are_written_in_order_between_start_and_stop() -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        for number in range(3):
            audit.broker(f"e{number}")
        await settle()
        assert audit.written == 4
        audit.broker("last")
        await writer.close()

    topic = run(test)
    assert topic.operations == ["start", "e0", "e1", "e2", "last", "stop"]
    assert checked(topic.read) == []
    assert [each["seq"] for each in topic.read] == list(range(6))


def test_many_are_written_some_at_a_time() -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        for _ in range(3 * AUDIT_EVENTS_AT_ONCE):
            audit.broker("e")
        await settle()
        assert len(audit.waiting) == 0

    topic = run(test)
    assert topic.largest == AUDIT_EVENTS_AT_ONCE
    assert checked(topic.read) == []


@pytest.mark.parametrize("stored", [0, 1, 3])
def test_what_is_not_taken_is_tried_again(stored: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also if some of it was stored, of which the answer was lost."""
    caplog.set_level(logging.INFO, "pulsark")
    topic = Topic()
    topic.failing, topic.stores_before_failing = 1 if stored == 3 else 2, stored

    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        audit.broker("one")
        audit.broker("two")
        await settle()
        assert audit.written == 0
        await asyncio.sleep(60)
        assert 2 <= topic.opened <= 3
        assert audit.written == 3
        await writer.close()

    run(test, topic)
    assert [each["seq"] for each in topic.read] == list(range(4))
    assert checked(topic.read) == []
    said = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "the disk is gone" in said[0]
    assert said[1] == "audit: the topic accepts events again"


def test_a_restart_goes_on_with_the_chain() -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await settle()
        await writer.close()

    topic = run(test)
    run(test, topic)
    assert topic.operations == ["start", "stop"] * 2
    assert checked(topic.read) == []


def test_what_was_counted_is_written_when_its_time_is_over() -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        for _ in range(4):
            audit.login_failed(Origin("binary", "h:1"), "expired", "token")
        await settle()
        assert topic.operations == ["start", "login"]
        await asyncio.sleep(11)
        assert topic.read[-1]["suppressed"] == 3

    run(test)


def test_what_was_counted_is_written_at_the_stop() -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        for _ in range(4):
            audit.login_failed(Origin("binary", "h:1"), "expired", "token")
        await writer.close()
        assert topic.read[-1]["suppressed"] == 3 or topic.read[-2]["suppressed"] == 3

    run(test)


def test_a_flood_while_storage_is_away_costs_events_and_says_so() -> None:
    topic = Topic()
    topic.failing = 3

    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await settle()
        for _ in range(AUDIT_EVENTS_MAX + 10):
            audit.broker("e")
        assert audit.waiting.dropped == 10
        await asyncio.sleep(60)
        audit.broker("after")
        await settle()
        lost, after = topic.read[-2:]
        assert (lost["operation"], lost["suppressed"], after["operation"]) == ("lost", 10, "after")
        assert lost["seq"] == topic.read[-3]["seq"] + 11

    assert checked(run(test, topic).read) == []


@pytest.mark.parametrize("kind", ["silent", "failing"])
def test_a_stop_waits_for_no_storage_that_is_gone(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await settle()
        topic.silent, topic.failing = kind == "silent", 1000
        audit.broker("e")
        before = asyncio.get_running_loop().time()
        await writer.close()
        took = asyncio.get_running_loop().time() - before
        assert took <= AUDIT_CLOSE_SECONDS if kind == "silent" else took < 0.1

    topic, tree = Topic(), MemoryTree()
    run(test, topic, tree)
    assert "2 events are written when the broker starts again" in caplog.text
    topic.silent, topic.failing = False, 0

    async def after(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await settle()
        assert tree.children(AUDIT_LEFT) == []
        await writer.close()

    run(after, topic, tree)
    assert topic.operations == ["start", "e", "stop", "start", "stop"]
    assert checked(topic.read) == []


@pytest.mark.parametrize("stored", [0, 1, 2])
def test_what_was_stored_without_an_answer_before_a_stop_is_not_written_again(stored: int) -> None:
    async def before(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await settle()
        topic.failing, topic.stores_before_failing = 1, stored
        audit.broker("e")
        await writer.close()

    async def after(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await writer.close()

    tree = MemoryTree()
    topic = run(before, tree=tree)
    run(after, topic, tree)
    assert topic.operations == ["start", "e", "stop", "start", "stop"]
    assert checked(topic.read) == []
    assert tree.children(AUDIT_LEFT) == []


def test_what_two_processes_could_not_write_comes_in_order() -> None:
    async def never(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        topic.opens = False
        audit.broker("e")
        await settle()
        await writer.close()

    async def after(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        topic.opens = True
        await writer.close()

    tree = MemoryTree()
    topic = run(never, tree=tree)
    run(never, topic, tree)
    run(after, topic, tree)
    assert topic.operations == [*["start", "e", "stop"] * 2, "start", "stop"]
    assert checked(topic.read) == []


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"records": [1], "events": []}'])
def test_what_cannot_be_understood_of_before_ends_no_audit(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await writer.close()

    tree = MemoryTree()
    tree.put(f"{AUDIT_LEFT}/b", value, ABSENT, None)
    assert run(test, tree=tree).operations == ["start", "stop"]
    assert "cannot be understood" in caplog.text


def test_what_is_more_than_there_is_room_for_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        topic.opens = False
        for _ in range(AUDIT_LEFT_BYTES_MAX // 256):
            audit.broker("e", "x" * 400)
        await writer.close()

    run(test)
    said = [int(record.args[0]) for record in caplog.records[-2:] if isinstance(record.args, tuple)]
    assert "written when the broker starts again" in caplog.messages[-2]
    assert "could not be written" in caplog.messages[-1]
    assert sum(said) == AUDIT_LEFT_BYTES_MAX // 256 + 2
    assert AUDIT_LEFT_BYTES_MAX // 1024 < said[0] < AUDIT_LEFT_BYTES_MAX // 400


def test_a_defect_ends_neither_writer_nor_broker() -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        publish = topic.publish

        async def broken(records: Sequence[AuditRecord], times_ms: Sequence[int]) -> None:
            topic.publish = publish  # type: ignore[method-assign]
            raise RuntimeError("a defect")

        topic.publish = broken  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert topic.operations == ["start"]

    run(test)


def test_the_audit_knows_whether_the_topic_takes_events() -> None:
    async def test(audit: Audit, topic: Topic, writer: AuditWriter) -> None:
        await settle()
        assert not audit.is_stuck
        topic.failing = 1
        audit.broker("e")
        await settle()
        assert audit.is_stuck
        await asyncio.sleep(5)
        assert not audit.is_stuck
        topic.silent = True
        audit.broker("e")
        await asyncio.sleep(AUDIT_STUCK_SECONDS)
        assert not audit.is_stuck
        await asyncio.sleep(0.1)
        assert audit.is_stuck

    run(test)
