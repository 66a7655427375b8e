"""What the audit hears of commands: whatever they change, and nothing of what they do not."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from pulsark.dispatch.connection.accesses import CHANGELESS
from pulsark.dispatch.connection.handlers import HANDLERS
from pulsark.security.audit.audit import Audit
from pulsark.wire import pulsar_pb2 as pb
from tests.support.broker_clients import NAME, TOPIC, Client, Command, scenario


def heard(audit: Audit) -> list[tuple[Any, ...]]:
    """Of each event: the command, what happened and the subscription."""
    return [
        (
            event["operation"],
            event["parameters"]["changed"],
            event["resource"].get("subscription"),
        )
        for each in audit.waiting.take(1000)
        if (event := each.event).get("parameters", {}).get("changed")
    ]


async def seek(client: Client) -> None:
    command = Command(type=Command.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, 50
    command.seek.message_publish_time = 0
    client.send(command)
    await client.take(Command.SUCCESS)


async def unsubscribe(client: Client) -> None:
    command = Command(type=Command.UNSUBSCRIBE)
    command.unsubscribe.consumer_id, command.unsubscribe.request_id = 1, 60
    client.send(command)
    await client.take(Command.SUCCESS)


def quiet(broker: Any) -> Audit:
    """The audit of a broker, of which nothing is written."""
    broker.broker._audit_writer._task.cancel()
    audit: Audit = broker.broker.audit
    audit.waiting.take(1000)
    return audit


@scenario(auditEnabled=True)
async def test_what_commands_change_is_noted(broker) -> None:
    audit = quiet(broker)
    client = Client(broker)
    await client.produce(TOPIC, 3)
    assert heard(audit) == [("PRODUCER", "topic created", None)]
    assert await client.subscribe(TOPIC, "s") == 0
    assert heard(audit) == [("SUBSCRIBE", "subscription created", "s")]
    await client.deliveries()
    assert heard(audit) == []
    await seek(client)
    assert heard(audit) == [("SEEK", "cursor moved", "s")]
    again = Client(broker)
    assert await again.subscribe(TOPIC, "s") == 0
    assert heard(audit) == []
    await unsubscribe(again)
    assert heard(audit) == [("UNSUBSCRIBE", "subscription deleted", "s")]


@scenario(auditEnabled=True)
async def test_a_client_that_hangs_up_leaves_no_subscription_unnoted(broker) -> None:
    audit = quiet(broker)
    await Client(broker).produce(TOPIC, 1)
    heard(audit)
    loaded = broker.broker.topics.get_loaded(NAME)
    client = Client(broker)
    client.send(client.subscribe_command(TOPIC))
    for _ in range(200):  # until the log writes it, and no longer
        await asyncio.sleep(0)
        if loaded.cursors._log._creating:
            break
    client.hang_up()
    await asyncio.sleep(1)
    assert loaded.cursors._log.subscriptions(loaded.ledger.topic_id) == ["s"]
    assert heard(audit) == [("SUBSCRIBE", "subscription created", "s")]


@scenario(auditEnabled=True)
async def test_a_topic_keeps_no_connection_that_opened_it(broker) -> None:
    quiet(broker)
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert await client.subscribe(TOPIC) == 0
    connection = weakref.ref(client.connection)
    client.hang_up()
    await asyncio.sleep(1)
    del client
    gc.collect()
    assert connection() is None


@scenario()
async def test_without_an_audit_commands_are_not_watched(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 1)
    assert client.connection._handlers is HANDLERS


def test_commands_that_are_not_watched_exist() -> None:
    assert HANDLERS.keys() >= CHANGELESS
    assert pb.BaseCommand.SEEK not in CHANGELESS
