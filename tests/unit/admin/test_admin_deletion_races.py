"""What is said of a topic while it is deleted goes with it: the next of its name begins anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.admin.pulsar import permissions, policies
from pulsark.errors import ClientError
from pulsark.security.grants import TOPICS, granted
from tests.support.broker_clients import NAME, BrokerInMemory, scenario


def deleted_before(records: Any, broker: BrokerInMemory) -> asyncio.Future[None]:
    """The topic is deleted before the next change of these records, as far as that goes."""
    update, deletion = records.update, asyncio.get_running_loop().create_future()

    async def late(*given: Any, **how: Any) -> None:
        records.update = update
        deleting = asyncio.ensure_future(broker.broker.deletion.delete_topic(NAME))
        deleting.add_done_callback(lambda _: deletion.set_result(None))
        await asyncio.sleep(1)
        await update(*given, **how)

    records.update = late
    return deletion


@scenario()
async def test_a_permission_is_not_left_to_the_next_topic(broker: BrokerInMemory) -> None:
    await broker.broker.topics.load(NAME, create=True)
    namespaces = broker.broker.resources.namespaces
    deletion = deleted_before(namespaces, broker)
    await permissions._grant_on_topic(broker.broker, NAME, "role", ["produce"])
    await deletion
    found = await namespaces.get(NAME.namespace_name)
    assert found is not None
    assert granted(found.policies, TOPICS) == {}
    with pytest.raises(ClientError, match="does not exist"):
        await permissions._grant_on_topic(broker.broker, NAME, "role", ["produce"])


@scenario()
async def test_a_policy_is_not_left_to_the_next_topic(broker: BrokerInMemory) -> None:
    await broker.broker.topics.load(NAME, create=True)
    records = broker.broker.resources.topic_policies
    deletion = deleted_before(records, broker)
    change = policies._of_topic(broker.broker, NAME)
    await change(lambda own: own.update(message_ttl_in_seconds=7))
    await deletion
    assert await records.get(NAME) == {}
    with pytest.raises(ClientError, match="does not exist"):
        await change(dict.clear)
