"""Tables of topics that nobody has loaded get what an older release left out of their logs."""

from __future__ import annotations

import asyncio

from pulsark.config.settings import Settings
from pulsark.dispatch.policies.policies import effective
from pulsark.dispatch.tables.sealing_due import CHECK_SECONDS
from pulsark.dispatch.upkeep.unloaded_sealing import UnloadedSealing
from pulsark.storage.table.files.file_skipping import STATED_COLUMNS
from pulsark.storage.table.files.record import TableRecord
from tests.support.broker_clients import NAME, BrokerInMemory, scenario
from tests.unit.dispatch.tables.test_sealing import appended


async def record_of(broker: BrokerInMemory) -> TableRecord:
    record = await broker.broker.tables.record(NAME)
    assert record is not None
    return record


@scenario(sealEnabled=True, sealFreshnessSeconds=1)
async def test_the_log_of_an_older_release_gets_its_statistics(broker: BrokerInMemory) -> None:
    inner, policies = broker.broker, effective(Settings(), {}, {})
    states, inner.tables.states = inner.tables.states, lambda: False
    await appended(broker, 3)
    await asyncio.sleep(4 * CHECK_SECONDS)
    await (await inner.topics.load(NAME)).ledger.close_ledger()
    await asyncio.sleep(4 * CHECK_SECONDS)
    record = await record_of(broker)
    assert (record.attached, record.stated, record.indexed) == (1, False, None)
    care = UnloadedSealing(inner.metadata, inner.tables, inner.sealing)
    assert not await care.is_due(NAME, policies), "not all brokers would understand it"
    inner.tables.states = states
    assert inner.tables.states()
    assert await care.is_due(NAME, policies)
    await care.attend(await inner.topics.load(NAME))
    await asyncio.sleep(4 * CHECK_SECONDS)
    assert (await record_of(broker)).indexed == STATED_COLUMNS
    assert not await care.is_due(NAME, policies)
