"""Documents of the metadata store that cannot be understood: brokers go on, and follow the next."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.dispatch.brokers.owners import Assigned, BundleOwner
from pulsark.dispatch.topics.bundles import Covered
from pulsark.errors import CorruptMetadataError, MetadataError
from pulsark.metadata.paths import CONFIGURATION, MOVED_BUNDLES, assigned_bundle_path
from pulsark.metadata.store import ABSENT
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import TOPIC, BrokerInMemory, Client, scenario

DAMAGED = (
    b"",
    b"\xff",
    b"7",
    b"null",
    b"[]",
    b"{}",
    b'{"version": 1}',
    b'{"version": 1, "values": []}',
    b'{"version": 1, "values": {"maxTenants": 7}}',
    b'{"version": 1, "broker": [], "since": "now"}',
)
BUNDLE = "public/default/0x40000000_0x80000000"
IN_BUNDLE = next(
    name
    for name in (TopicName.parse(f"persistent://public/default/t{n}") for n in range(100))
    if name in Covered(BUNDLE)
)


async def write(broker: BrokerInMemory, path: str, value: bytes) -> None:
    found = await broker.metadata.get(path)
    version = ABSENT if found is None else found.version
    await broker.metadata.put(path, value, version)
    await asyncio.sleep(1)


@pytest.mark.parametrize("value", DAMAGED)
def test_of_changed_settings(value: bytes) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        before = broker.broker.settings.maxTenants
        await write(broker, CONFIGURATION, value)
        assert broker.broker.settings.maxTenants == before
        await write(broker, CONFIGURATION, b'{"version": 1, "values": {"maxTenants": "77"}}')
        assert broker.broker.settings.maxTenants == 77
        await Client(broker).produce(TOPIC, 1)

    run()


@pytest.mark.parametrize("value", DAMAGED)
def test_of_who_is_to_claim_a_bundle(value: bytes) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        two = await broker.another()
        await write(broker, assigned_bundle_path(BUNDLE), value)
        assert not broker.broker.ownership.has(BUNDLE)
        found = [await each.broker.lookup.find(IN_BUNDLE) for each in (broker, two)]
        assert found[0].broker_id == found[1].broker_id
        other = f"{BUNDLE.rpartition('/')[0]}/0x80000000_0xc0000000"
        note = Assigned(two.broker.registry.own_id, two.broker.clock.now_ms())
        await write(broker, assigned_bundle_path(other), note.encode())
        assert two.broker.ownership.has(other)

    run()


@pytest.mark.parametrize("value", DAMAGED)
def test_of_the_owner_of_a_bundle(value: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="claim of a bundle"):
        BundleOwner.decode(value)


@pytest.mark.parametrize("value", DAMAGED)
def test_of_bundles_that_were_moved(value: bytes) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        await write(broker, MOVED_BUNDLES, value)
        assert await broker.broker.load_shedding._moved() == {}

    run()


@scenario()
async def test_notes_that_cannot_be_read_now_are_read_later(broker: BrokerInMemory) -> None:
    two = await broker.another()
    get, failures = two.metadata.get, 3

    async def get_or_fail(path: str) -> object:
        nonlocal failures
        if path == assigned_bundle_path(BUNDLE) and failures:
            failures -= 1
            raise MetadataError("the store does not answer")
        return await get(path)

    two.metadata.get = get_or_fail  # type: ignore[method-assign, assignment]
    note = Assigned(two.broker.registry.own_id, two.broker.clock.now_ms())
    await write(broker, assigned_bundle_path(BUNDLE), note.encode())
    await asyncio.sleep(10)
    assert two.broker.ownership.has(BUNDLE)
