"""What changed and could not be read at once is read again, whoever follows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.policies.policies import STORAGE_QUOTA
from pulsark.dispatch.upkeep.storage_quotas import Use
from pulsark.errors import CorruptMetadataError, MetadataError
from pulsark.limits import METADATA_RETRY_SECONDS, METADATA_RETRY_SECONDS_MAX
from pulsark.security.facts import Rules
from tests.support.broker_clients import NAME, BrokerInMemory, scenario
from tests.unit.dispatch.connection.test_revocation import BOTH, Command, attached, begin, grant

OUTAGE_SECONDS = 25.0
"""Longer than until a grant is looked at once more in any case."""


@contextlib.contextmanager
def unreadable(
    broker: BrokerInMemory, error: type[MetadataError] = MetadataError
) -> Iterator[list[str]]:
    """Reads fail in the body; which were tried of the default namespace."""
    store = broker.broker.metadata
    tried: list[str] = []

    async def failing(path: str) -> Any:
        if path.endswith("/public/default"):  # what is read in any case begins elsewhere
            tried.append(path)
        raise error("the store does not answer")

    store.get = failing  # type: ignore[method-assign]
    try:
        yield tried
    finally:
        del store.get  # type: ignore[method-assign]


async def set_policy(broker: BrokerInMemory, key: str, value: Any) -> None:
    def changed(namespace: Any) -> Any:
        return replace(namespace, policies={**namespace.policies, key: value})

    await broker.broker.resources.namespaces.update("public/default", changed)


@scenario()
async def test_policies_of_a_topic_in_memory(broker) -> None:
    topic = await broker.broker.topics.load(NAME, create=True)
    before = topic.policies
    await set_policy(broker, "message_ttl_in_seconds", 77)
    with unreadable(broker):
        await asyncio.sleep(OUTAGE_SECONDS)
        assert topic.policies == before
    await asyncio.sleep(METADATA_RETRY_SECONDS_MAX + 1)
    assert topic.policies != before


@scenario()
async def test_reads_become_rare_during_a_long_outage_and_end_with_the_broker(broker) -> None:
    await broker.broker.topics.load(NAME, create=True)
    await set_policy(broker, "message_ttl_in_seconds", 77)
    with unreadable(broker) as tried:
        await asyncio.sleep(3600)
        assert len(tried) < 3600 / METADATA_RETRY_SECONDS_MAX + 20
        await broker.broker.close()
        tried.clear()
        await asyncio.sleep(3600)
        assert tried == []


@scenario()
async def test_what_is_damaged_is_not_read_again_until_it_changes(broker) -> None:
    topic = await broker.broker.topics.load(NAME, create=True)
    before = topic.policies
    await set_policy(broker, "message_ttl_in_seconds", 77)
    with unreadable(broker, CorruptMetadataError) as tried:
        await asyncio.sleep(METADATA_RETRY_SECONDS / 2)
        tried.clear()
        await asyncio.sleep(OUTAGE_SECONDS)
        assert tried == []
    await set_policy(broker, "message_ttl_in_seconds", 78)
    await asyncio.sleep(0.01)
    assert topic.policies != before


@scenario()
async def test_the_rate_of_a_resource_group(broker) -> None:
    groups, throttles = broker.broker.resources.resource_groups, broker.broker.group_throttles
    await groups.put("gold", {"publishRateInMsgs": 10})
    with unreadable(broker):
        await asyncio.sleep(OUTAGE_SECONDS)
        assert throttles.of("gold") is None
    await asyncio.sleep(METADATA_RETRY_SECONDS_MAX + 1)
    assert throttles.of("gold") is not None


@scenario()
async def test_a_storage_quota(broker) -> None:
    await asyncio.sleep(61)
    await set_policy(broker, STORAGE_QUOTA, {"limitBytes": 100, "policy": "producer_exception"})
    with unreadable(broker):
        await asyncio.sleep(120)
    await asyncio.sleep(120)
    assert broker.broker.storage_quotas.namespaces == {"public/default": Use(0, 100)}


@pytest.mark.parametrize("told", ["of a change", "of missed ones"])
def test_a_right_that_went(told: str) -> None:
    @scenario(rules=Rules(frozenset({"root"})))
    async def closed(broker) -> None:
        await begin(broker, it=BOTH)
        client = await attached(broker, "it")
        await grant(broker, "it", [])
        with unreadable(broker):
            if told == "of missed ones":
                broker.metadata.tree.watches.tell_missed()
            await asyncio.sleep(OUTAGE_SECONDS)
            assert not client.has(Command.CLOSE_PRODUCER)
        await client.take(Command.CLOSE_PRODUCER, seconds=METADATA_RETRY_SECONDS_MAX + 1)
        await client.take(Command.CLOSE_CONSUMER)

    closed()
