"""What happened since a time is found without reading all there is, whatever the clock did."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest

from pulsark.dispatch.topic.topic import Topic
from pulsark.security.audit.definition import TOPIC
from pulsark.wire.entry import entry_metadata
from pulsark.wire.position import Position
from tests.sim.clock import SimClock
from tests.support.broker_clients import BrokerInMemory, scenario
from tests.support.inline_table import InlineTable

HOUR_MS = 3_600_000
LEDGER = 100


async def noted(broker: BrokerInMemory, count: int) -> list[int]:
    """Note so many events; when each of them was."""
    audit, times = broker.broker.audit, []
    assert audit is not None
    for _ in range(count):
        audit.broker("e")
        times.append(broker.broker.clock.now_ms())
        await asyncio.sleep(0.01)
    return times


async def loaded(broker: BrokerInMemory) -> Topic:
    return await broker.broker.topics.load(TOPIC)


async def after(broker: BrokerInMemory, ms: int) -> int:
    """How many events are found from a time on."""
    ledger = (await loaded(broker)).ledger
    first = await ledger.find_by_publish_time(ms)
    before = ledger.previous_position(first)
    return ledger.entries_between(before, ledger.last_confirmed)


@scenario(
    auditEnabled=True,
    sealEnabled=True,
    sealFreshnessSeconds=0,
    managedLedgerMaxEntriesPerLedger=LEDGER,
    managedLedgerMinLedgerRolloverTimeMinutes=0,
)
async def test_of_a_sealed_topic_few_files_are_read(
    broker: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = await noted(broker, 24 * LEDGER)
    await asyncio.sleep(120)
    ledgers = (await loaded(broker)).ledger.ledgers()
    in_journal = [len(broker.bookie.entries(each.ledger_id)) for each in ledgers]
    assert len(ledgers) == 25
    assert not any(in_journal[:-1])
    read: list[dict[str, Any]] = []
    exchange = InlineTable._exchange

    async def noting(
        self: InlineTable, request: dict[str, Any], entries: Any = None, subject: str = ""
    ) -> Any:
        read.append(request)
        return await exchange(self, request, entries, subject)

    monkeypatch.setattr(InlineTable, "_exchange", noting)
    assert await after(broker, times[-10]) == 10
    files = [each for each in read if each["op"] == "read"]
    # A step of the search looks at a window, which may lie in two ledgers.
    assert 0 < len(files) <= 2 * math.ceil(math.log2(24))


@scenario(auditEnabled=True)
async def test_a_clock_that_goes_back_hides_nothing(broker: BrokerInMemory) -> None:
    clock = cast(SimClock, broker.broker.clock)
    await noted(broker, 300)
    await asyncio.sleep(3600)
    begin = clock.now_ms()
    await noted(broker, 20)
    clock.step_ms -= HOUR_MS
    await noted(broker, 500)
    assert await after(broker, begin) == 520
    clock.step_ms += HOUR_MS
    await noted(broker, 300)
    assert await after(broker, begin) == 820
    await broker.restart()
    clock.step_ms -= HOUR_MS
    await noted(broker, 300)
    assert await after(broker, begin) >= 820 + 300


@scenario(auditEnabled=True)
async def test_events_say_what_the_clock_said(broker: BrokerInMemory) -> None:
    """Only the time by which they are found never goes back."""
    clock = cast(SimClock, broker.broker.clock)
    await noted(broker, 1)
    clock.step_ms -= HOUR_MS
    (then,) = await noted(broker, 1)
    entries = await (await loaded(broker)).entries.read(Position(0, 0), 10, 1 << 20)
    heads = [entry_metadata(each.data) for each in entries]
    assert heads[-1].event_time == then
    assert heads[-1].publish_time == heads[-2].publish_time > then
