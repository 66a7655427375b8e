"""What clients may do over the binary protocol, and how they are told that they may not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pulsark.errors import MetadataError, ServerError
from pulsark.metadata.resources import AUDIT_TOPIC, Tenant
from pulsark.security import grants
from pulsark.security.decisions import Decision, Rule, Target
from pulsark.security.facts import Rules
from pulsark.security.operations import Operation
from pulsark.security.principal import Principal
from pulsark.wire import pulsar_pb2 as pb
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.samples import sample_of

RULES = Rules(frozenset({"root"}), frozenset({"proxy"}))
AUTHORIZED = scenario(rules=RULES)


async def acme(broker: BrokerInMemory, **granted: list[str]) -> None:
    """A tenant with an administrator, a namespace, and what is granted in it."""
    resources = broker.broker.resources
    await resources.tenants.create("acme", Tenant(("boss",)))
    await resources.namespaces.create("acme/web")
    for role, actions in granted.items():
        await grant(broker, role, actions)


async def grant(broker: BrokerInMemory, role: str, actions: list[str]) -> None:
    def changed(namespace: Any) -> Any:
        policies = dict(namespace.policies)
        grants.grant(policies, role, actions)
        return replace(namespace, policies=policies)

    await broker.broker.resources.namespaces.update("acme/web", changed)


def client(broker: BrokerInMemory, role: str, original: str | None = None) -> Client:
    return Client(broker, principal=Principal(role, original))


async def answer(who: Client, kind: int, *types: int) -> pb.BaseCommand:
    who.send(sample_of(kind))
    return await who.take(*types)


async def denial(who: Client, kind: int, reply: int) -> tuple[int, str]:
    """The code and the text of what is refused."""
    found = await answer(who, kind, reply)
    response = getattr(found, Command.DESCRIPTOR.fields_by_number[found.type].name)
    assert 7 in (getattr(response, field, 0) for field in ("request_id", "session_id", "watch_id"))
    if hasattr(response, "error_code"):
        return response.error_code, response.error_message
    return response.error, response.message


DENIALS = [
    (Command.LOOKUP, Command.LOOKUP_RESPONSE, "Lookup"),
    (Command.SCALABLE_TOPIC_LOOKUP, Command.SCALABLE_TOPIC_UPDATE, "lookup"),
    (
        Command.SCALABLE_TOPIC_SUBSCRIBE,
        Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
        "subscribe",
    ),
    (Command.PARTITIONED_METADATA, Command.PARTITIONED_METADATA_RESPONSE, "Partition Metadata"),
    (Command.GET_SCHEMA, Command.GET_SCHEMA_RESPONSE, "Schema"),
    (Command.GET_OR_CREATE_SCHEMA, Command.GET_OR_CREATE_SCHEMA_RESPONSE, "Produce"),
    (Command.PRODUCER, Command.ERROR, "Produce"),
    (Command.SUBSCRIBE, Command.ERROR, "subscribe"),
    (Command.GET_TOPICS_OF_NAMESPACE, Command.ERROR, "GetTopicsOfNamespace"),
    (Command.WATCH_TOPIC_LIST, Command.ERROR, "watchTopicList"),
    (
        Command.WATCH_SCALABLE_TOPICS,
        Command.WATCH_SCALABLE_TOPICS_UPDATE,
        "watchScalableTopics",
    ),
    (Command.ADD_PARTITION_TO_TXN, Command.ERROR, "Produce"),
    (Command.ADD_SUBSCRIPTION_TO_TXN, Command.ERROR, "subscribe"),
    (Command.END_TXN_ON_PARTITION, Command.ERROR, "authorized"),
    (Command.END_TXN_ON_SUBSCRIPTION, Command.ERROR, "authorized"),
]


@pytest.mark.parametrize("audited", [False, True])
@pytest.mark.parametrize(("kind", "reply", "said"), DENIALS)
def test_a_denial_has_the_form_of_the_command(
    kind: int, reply: int, said: str, audited: bool
) -> None:
    @scenario(rules=RULES, auditEnabled=audited)
    async def run(broker) -> None:
        await acme(broker)
        stranger = client(broker, "stranger")
        for _ in range(2):  # before and after what decides is in memory
            code, text = await denial(stranger, kind, reply)
            assert code == ServerError.AuthorizationError
            assert said in text
            assert "stranger" not in text
        assert {str(topic.name) for topic in broker.broker.topics.served()} <= {AUDIT_TOPIC}

    run()


@AUTHORIZED
async def test_a_granted_role_does_what_it_was_granted(broker) -> None:
    await acme(broker, writer=["produce"], reader=["consume"])
    writer, reader = client(broker, "writer"), client(broker, "reader")
    found = await answer(writer, Command.LOOKUP, Command.LOOKUP_RESPONSE)
    assert found.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Connect
    await answer(reader, Command.SUBSCRIBE, Command.SUCCESS)
    code, _ = await denial(reader, Command.PRODUCER, Command.ERROR)
    assert code == ServerError.AuthorizationError
    plain = sample_of(Command.PRODUCER)
    plain.producer.ClearField("initial_subscription_name")
    writer.send(plain)
    await writer.take(Command.PRODUCER_SUCCESS)
    code, _ = await denial(writer, Command.SUBSCRIBE, Command.ERROR)
    assert code == ServerError.AuthorizationError


@AUTHORIZED
async def test_a_producer_that_makes_a_subscription_has_to_be_allowed_to(broker) -> None:
    await acme(broker, writer=["produce"], both=["produce", "consume"])
    code, _ = await denial(client(broker, "writer"), Command.PRODUCER, Command.ERROR)
    assert code == ServerError.AuthorizationError
    await answer(client(broker, "both"), Command.PRODUCER, Command.PRODUCER_SUCCESS)


@pytest.mark.parametrize("role", ["root", "boss"])
def test_super_users_and_the_tenants_administrators_do_everything(role: str) -> None:
    @AUTHORIZED
    async def run(broker) -> None:
        await acme(broker)
        admin = client(broker, role)
        await answer(admin, Command.PRODUCER, Command.PRODUCER_SUCCESS)
        await answer(admin, Command.SUBSCRIBE, Command.SUCCESS)
        await answer(
            admin, Command.GET_TOPICS_OF_NAMESPACE, Command.GET_TOPICS_OF_NAMESPACE_RESPONSE
        )

    run()


@AUTHORIZED
async def test_a_proxy_needs_the_right_too(broker) -> None:
    await acme(broker, writer=["produce"])
    proxied = client(broker, "proxy", "writer")
    code, _ = await denial(proxied, Command.LOOKUP, Command.LOOKUP_RESPONSE)
    assert code == ServerError.AuthorizationError
    await grant(broker, "proxy", ["produce"])
    await asyncio.sleep(0.01)
    found = await answer(proxied, Command.LOOKUP, Command.LOOKUP_RESPONSE)
    assert found.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Connect


@AUTHORIZED
async def test_a_missing_tenant_is_not_found_where_partitions_are_asked_for(broker) -> None:
    stranger = client(broker, "stranger")
    code, text = await denial(
        stranger, Command.PARTITIONED_METADATA, Command.PARTITIONED_METADATA_RESPONSE
    )
    assert (code, text) == (ServerError.TopicNotFound, "Tenant does not exist")
    code, _ = await denial(stranger, Command.LOOKUP, Command.LOOKUP_RESPONSE)
    assert code == ServerError.AuthorizationError


@AUTHORIZED
async def test_a_name_that_is_none_is_told_in_the_form_of_the_command(broker) -> None:
    command = sample_of(Command.LOOKUP)
    command.lookupTopic.topic = "no://way"
    stranger = client(broker, "stranger")
    stranger.send(command)
    found = (await stranger.take(Command.LOOKUP_RESPONSE)).lookupTopicResponse
    assert found.error == ServerError.InvalidTopicName


class SlowProvider:
    """Decides when a test lets it, or fails."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    def start(self) -> None: ...

    def close(self) -> None: ...

    def decided(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision | None:
        return None

    async def decision(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Decision(True, Rule.LOGIN)


@scenario()
async def test_a_consumer_that_is_given_up_while_it_is_asked_for_never_comes(broker) -> None:
    provider = broker.broker.authorization = SlowProvider()
    await acme(broker)
    who = client(broker, "reader")
    subscribe = sample_of(Command.SUBSCRIBE)
    subscribe.subscribe.consumer_id = 3
    who.send(subscribe)
    close = Command(type=Command.CLOSE_CONSUMER)
    close.close_consumer.consumer_id = 3
    close.close_consumer.request_id = 8
    who.send(close)
    assert (await who.take(Command.SUCCESS)).success.request_id == 8
    provider.gate.set()
    await asyncio.sleep(0.01)
    assert who.connection.opened.consumers == {}
    assert not broker.broker.topics.served()


@scenario()
async def test_a_consumer_is_there_once_it_was_asked_for(broker) -> None:
    provider = broker.broker.authorization = SlowProvider()
    await acme(broker)
    who = client(broker, "reader")
    who.send(sample_of(Command.SUBSCRIBE))
    provider.gate.set()
    assert (await who.take(Command.SUCCESS)).success.request_id == 7
    assert len(who.connection.opened.consumers) == 1


@scenario()
async def test_a_client_that_leaves_while_it_is_asked_for_leaves_nothing(broker) -> None:
    provider = broker.broker.authorization = SlowProvider()
    await acme(broker)
    who = client(broker, "writer")
    who.send(sample_of(Command.PRODUCER))
    who.hang_up()
    provider.gate.set()
    await asyncio.sleep(0.01)
    assert not broker.broker.topics.served()


@scenario()
async def test_where_nobody_can_decide_the_answer_says_so_in_the_form_of_the_command(
    broker,
) -> None:
    provider = broker.broker.authorization = SlowProvider()
    provider.error = MetadataError("the store is gone")
    provider.gate.set()
    code, text = await denial(client(broker, "reader"), Command.LOOKUP, Command.LOOKUP_RESPONSE)
    assert (code, text) == (ServerError.MetadataError, "the store is gone")


@AUTHORIZED
async def test_what_is_given_up_while_its_right_is_looked_up_is_not_opened(broker) -> None:
    await acme(broker, it=["produce", "consume"])
    it = client(broker, "it")
    names = {
        Command.SCALABLE_TOPIC_CLOSE: "session_id",
        Command.SCALABLE_TOPIC_UNSUBSCRIBE: "consumer_id",
        Command.WATCH_SCALABLE_TOPICS_CLOSE: "watch_id",
    }
    opened = (
        Command.SCALABLE_TOPIC_LOOKUP,
        Command.SCALABLE_TOPIC_SUBSCRIBE,
        Command.WATCH_SCALABLE_TOPICS,
    )
    for kind, (close, field) in zip(opened, names.items(), strict=True):
        command, end = sample_of(kind), sample_of(close)
        names_of = Command.DESCRIPTOR.fields_by_number
        request = getattr(command, names_of[kind].name)
        setattr(getattr(end, names_of[close].name), field, getattr(request, field))
        it.send(command, end)
    await asyncio.sleep(0.1)
    for kind in (
        Command.SCALABLE_TOPIC_UPDATE,
        Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
        Command.WATCH_SCALABLE_TOPICS_UPDATE,
    ):
        assert not it.has(kind)
    assert broker.broker.scalable is None
