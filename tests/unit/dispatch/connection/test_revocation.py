"""What a role may do no more, its clients stop doing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.connection.revocation import Revocation
from pulsark.errors import CorruptMetadataError, ServerError
from pulsark.metadata.resources import Tenant
from pulsark.security import grants
from pulsark.security.facts import Rules
from pulsark.security.limits import REVISITED_PER_TURN_MAX, REVOKED_AGAIN_SECONDS
from pulsark.security.principal import Principal
from tests.support.broker_clients import SHARED, BrokerInMemory, Client, Command, scenario
from tests.support.samples import TOPIC, sample_of

AUTHORIZED = scenario(rules=Rules(frozenset({"root"})))
BOTH = ["produce", "consume"]


async def begin(broker: BrokerInMemory, **granted: list[str]) -> Revocation:
    resources = broker.broker.resources
    await resources.tenants.create("acme", Tenant(("boss",)))
    for namespace in ("acme/web", "acme/other"):
        await resources.namespaces.create(namespace)
        for role, actions in granted.items():
            await grant(broker, role, actions, namespace)
    revocation = Revocation(broker.broker, broker.broker.authorization)
    revocation.start()
    return revocation


async def grant(
    broker: BrokerInMemory, role: str, actions: list[str], namespace: str = "acme/web"
) -> None:
    def changed(before: Any) -> Any:
        policies = dict(before.policies)
        grants.grant(policies, role, actions)
        return replace(before, policies=policies)

    await broker.broker.resources.namespaces.update(namespace, changed)


async def attached(broker: BrokerInMemory, role: str) -> Client:
    """A client with a producer and a consumer."""
    client = Client(broker, principal=Principal(role))
    producer = sample_of(Command.PRODUCER)
    producer.producer.ClearField("initial_subscription_name")
    client.send(producer)
    await client.take(Command.PRODUCER_SUCCESS)
    client.send(client.subscribe_command(TOPIC, kind=SHARED))
    await client.take(Command.SUCCESS)
    return client


@AUTHORIZED
async def test_what_is_not_granted_any_more_is_closed_and_refused_again(broker) -> None:
    await begin(broker, it=BOTH, other=BOTH)
    client, other = await attached(broker, "it"), await attached(broker, "other")
    await grant(broker, "it", ["consume"])
    await client.take(Command.CLOSE_PRODUCER)
    await asyncio.sleep(0.01)
    assert not client.has(Command.CLOSE_CONSUMER)
    client.send(sample_of(Command.PRODUCER))
    assert (await client.take(Command.ERROR)).error.error == ServerError.AuthorizationError
    await grant(broker, "it", [])
    await client.take(Command.CLOSE_CONSUMER)
    assert not other.has(Command.CLOSE_PRODUCER)
    assert not other.has(Command.CLOSE_CONSUMER)


@AUTHORIZED
async def test_what_was_in_creation_when_the_right_went_is_closed_later(
    broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(broker, it=BOTH)
    gate, create = asyncio.Event(), broker.broker.creation.topic_for_clients

    async def slowly(name: Any) -> Any:
        await gate.wait()
        return await create(name)

    monkeypatch.setattr(broker.broker.creation, "topic_for_clients", slowly)
    client = Client(broker, principal=Principal("it"))
    producer = sample_of(Command.PRODUCER)
    producer.producer.ClearField("initial_subscription_name")
    client.send(producer)
    await asyncio.sleep(0.1)
    await grant(broker, "it", [])
    await asyncio.sleep(0.1)
    gate.set()
    await client.take(Command.PRODUCER_SUCCESS)
    await client.take(Command.CLOSE_PRODUCER, seconds=2 * REVOKED_AGAIN_SECONDS)


@AUTHORIZED
async def test_another_administrator_of_the_tenant_takes_what_the_one_before_had(broker) -> None:
    await begin(broker)
    boss, root = await attached(broker, "boss"), await attached(broker, "root")
    await broker.broker.resources.tenants.update("acme", Tenant(("heir",)))
    await boss.take(Command.CLOSE_PRODUCER)
    await boss.take(Command.CLOSE_CONSUMER)
    assert not root.has(Command.CLOSE_PRODUCER)


@AUTHORIZED
async def test_changes_of_other_namespaces_and_other_policies_close_nothing(broker) -> None:
    await begin(broker, it=BOTH)
    client = await attached(broker, "it")
    await grant(broker, "it", [], "acme/other")
    await broker.broker.resources.namespaces.update(
        "acme/web", lambda n: replace(n, policies={**n.policies, "message_ttl_in_seconds": 9})
    )
    await asyncio.sleep(0.1)
    assert not client.has(Command.CLOSE_PRODUCER)
    assert not client.has(Command.CLOSE_CONSUMER)


@AUTHORIZED
async def test_who_may_not_list_topics_any_more_hears_of_no_new_ones(broker) -> None:
    await begin(broker, it=BOTH)
    client = Client(broker, principal=Principal("it"))
    client.send(sample_of(Command.WATCH_TOPIC_LIST))
    await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)
    assert client.connection.opened.watchers
    await grant(broker, "it", [])
    await asyncio.sleep(0.1)
    assert not client.connection.opened.watchers


@AUTHORIZED
async def test_very_many_are_asked_in_many_turns(broker) -> None:
    await begin(broker, it=BOTH)
    client = Client(broker, principal=Principal("it"))
    count = 2 * REVISITED_PER_TURN_MAX + 1
    for number in range(count):
        client.send(client.subscribe_command(TOPIC, kind=SHARED, consumer_id=number))
        await client.take(Command.SUCCESS)
    await grant(broker, "it", [])
    for _ in range(count):
        await client.take(Command.CLOSE_CONSUMER)
    assert client.connection.opened.consumers == {}


@AUTHORIZED
async def test_a_client_that_leaves_meanwhile_is_left_alone(broker) -> None:
    await begin(broker, it=BOTH)
    client = await attached(broker, "it")
    await grant(broker, "it", [])
    client.hang_up()
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("started", [True, False])
def test_it_ends(started: bool) -> None:
    @AUTHORIZED
    async def run(broker) -> None:
        revocation = await begin(broker, it=BOTH)
        client = await attached(broker, "it")
        if started:
            await grant(broker, "it", [])
        revocation.close()
        await grant(broker, "it", [])
        await asyncio.sleep(0.1)
        assert client.has(Command.CLOSE_PRODUCER) is False

    run()


@AUTHORIZED
async def test_a_layout_that_may_be_looked_up_no_more_is_told_no_more(broker) -> None:
    await begin(broker, it=BOTH, other=BOTH)
    client, other = (Client(broker, principal=Principal(role)) for role in ("it", "other"))
    for each in (client, other):
        each.send(sample_of(Command.SCALABLE_TOPIC_LOOKUP))
        assert (await each.take(Command.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate.HasField("dag")
    await grant(broker, "it", [])
    denied = (await client.take(Command.SCALABLE_TOPIC_UPDATE)).scalableTopicUpdate
    assert denied.error == ServerError.AuthorizationError
    assert client.connection.opened.scalable.sessions == {}
    assert not other.has(Command.SCALABLE_TOPIC_UPDATE)


@AUTHORIZED
async def test_a_namespace_that_may_be_listed_no_more_is_told_no_more(broker) -> None:
    await begin(broker, it=BOTH, other=BOTH)
    client, other = (Client(broker, principal=Principal(role)) for role in ("it", "other"))
    kind = Command.WATCH_SCALABLE_TOPICS_UPDATE
    for each in (client, other):
        each.send(sample_of(Command.WATCH_SCALABLE_TOPICS))
        assert (await each.take(kind)).watchScalableTopicsUpdate.HasField("snapshot")
    await grant(broker, "it", [])
    denied = (await client.take(kind)).watchScalableTopicsUpdate
    assert denied.error == ServerError.AuthorizationError
    assert len(client.connection.opened.scalable.watches) == 0
    await attached(broker, "other")  # which makes a topic
    assert (await other.take(kind)).watchScalableTopicsUpdate.diff.added
    assert not client.has(kind)


@AUTHORIZED
async def test_a_damaged_namespace_keeps_nobody_elses_rights(broker, monkeypatch) -> None:
    await begin(broker, it=BOTH)
    first, client = Client(broker, principal=Principal("boss")), await attached(broker, "it")
    assert not isinstance(await first.open_producer("persistent://acme/other/t", "p"), int)
    provider = broker.broker.authorization
    decided, decision = provider.decided, provider.decision

    def unknown(principal: Principal, operation: Any, target: Any) -> Any:
        known = target.namespace != "acme/other"
        return decided(principal, operation, target) if known else None

    async def damaged(principal: Principal, operation: Any, target: Any) -> Any:
        if target.namespace == "acme/other":
            raise CorruptMetadataError("its record is damaged")
        return await decision(principal, operation, target)

    monkeypatch.setattr(provider, "decided", unknown)
    monkeypatch.setattr(provider, "decision", damaged)
    await grant(broker, "it", [])
    await broker.broker.resources.tenants.update("acme", Tenant(("heir",)))
    await client.take(Command.CLOSE_PRODUCER)
    assert not first.has(Command.CLOSE_PRODUCER)
