"""A broker writes its audit to its topic, whatever happens to that; clients do not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.topic.entries import TopicEntries
from pulsark.dispatch.topics.inactivity import is_due
from pulsark.errors import CorruptEntryError, ServerError
from pulsark.security.audit.chain import checked
from pulsark.security.audit.definition import TOPIC
from pulsark.security.audit.limits import AUDIT_HEAD_TRIES
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import read_messages
from pulsark.wire.position import Position
from tests.support.broker_clients import TOPIC as ORDERS
from tests.support.broker_clients import BrokerInMemory, Client, scenario
from tests.support.logging_in import SECRET, inline, token
from tests.support.wire_frames import publish
from tests.unit.dispatch.connection.test_login import connect, response

Command = pb.BaseCommand
ON: dict[str, Any] = {
    "authenticationEnabled": True,
    "authenticationProviders": ("token",),
    "tokenSecretKey": inline(SECRET),
}
LOCKED: dict[str, Any] = {**ON, "authorizationEnabled": True, "superUserRoles": ("root",)}


async def records(broker: BrokerInMemory) -> list[dict[str, Any]]:
    """What the topic holds, once nothing waits."""
    await asyncio.sleep(0.1)
    topic = await broker.broker.topics.load(TOPIC)
    found = await topic.entries.read(Position(0, 0), 10_000, 1 << 30)
    return [
        json.loads(payload) for each in found for _, payload in read_messages(each.data, 1 << 20)
    ]


async def client_of(broker: BrokerInMemory, role: str) -> Client:
    client = Client(broker, handshake=False)
    client.send(connect(data=token({"sub": role})))
    await client.take(Command.CONNECTED)
    return client


def operations(found: list[dict[str, Any]]) -> list[str]:
    return [each["operation"] for each in found]


@scenario()
async def test_without_authentication_there_is_none(broker: BrokerInMemory) -> None:
    assert broker.broker.audit is None
    await asyncio.sleep(1)
    assert not await broker.broker.catalog.exists(TOPIC)


@scenario(auditEnabled=True)
async def test_a_setting_switches_it_on(broker: BrokerInMemory) -> None:
    assert operations(await records(broker)) == ["start"]


@scenario(**ON, auditEnabled=False)
async def test_a_setting_switches_it_off(broker: BrokerInMemory) -> None:
    assert broker.broker.audit is None


@scenario(**LOCKED)
async def test_denials_and_logins_are_noted(broker: BrokerInMemory) -> None:
    kitchen = await client_of(broker, "kitchen")
    assert await kitchen.subscribe(ORDERS) == ServerError.AuthorizationError
    failed = Client(broker, handshake=False)
    failed.send(connect(data=b"aaaa.CANARY.bbbb"))
    await failed.take(Command.ERROR)
    start, denied, login = await records(broker)
    assert denied["actor"]["role"] == "kitchen"
    assert denied["operation"] == "SUBSCRIBE"
    assert denied["resource"]["name"] == ORDERS
    assert denied["resource"]["subscription"] == "s"
    assert denied["authz"] == {"operation": "topic CONSUME", "rule": "none", "granted": False}
    assert denied["src_endpoint"] == {"ip": "10.0.0.1", "port": 1234}
    assert login["status_detail"] == "malformed"
    assert login["actor"]["method"] == "token"
    assert len(login["actor"]["token_id"]) == 16
    assert "CANARY" not in json.dumps([start, denied, login])


@scenario(**LOCKED)
async def test_an_identifier_of_the_token_is_its_jti(broker: BrokerInMemory) -> None:
    client = Client(broker, handshake=False)
    client.send(connect(data=token({"sub": "kitchen", "jti": "token-17"})))
    await client.take(Command.CONNECTED)
    await client.subscribe(ORDERS)
    assert (await records(broker))[-1]["actor"]["token_id"] == "token-17"


@scenario(**ON, authenticationRefreshCheckSeconds=5)
async def test_what_becomes_of_logins_is_noted(broker: BrokerInMemory) -> None:
    client = await client_of(broker, "kitchen")
    client.send(response(token({"sub": "cook"})))
    await asyncio.sleep(0.01)
    stale = Client(broker, handshake=False)
    soon = broker.broker.clock.now_ms() / 1000 + 1
    stale.send(connect(data=token({"sub": "kitchen", "exp": soon}), refreshes=False))
    await asyncio.sleep(3)
    _, refresh, expiry = await records(broker)
    assert (refresh["operation"], refresh["status_detail"]) == ("refresh", "role")
    assert refresh["actor"]["role"] == "cook"
    assert (expiry["operation"], expiry["actor"]["role"]) == ("expiry", "kitchen")


@scenario(**ON, anonymousUserRole="nobody", brokerMaxConnectionsPerIp=1)
async def test_anonymous_credentials_and_limits_are_noted(broker: BrokerInMemory) -> None:
    unknown = Client(broker, handshake=False)
    unknown.send(connect("unknown", b"CANARY"))
    await unknown.take(Command.CONNECTED)
    Client(broker, handshake=False)
    found = await records(broker)
    assert operations(found) == ["start", "anonymous", "connect"]
    assert found[1]["actor"]["role"] == "nobody"
    assert "maximum number of connections" in found[2]["status_detail"]
    assert "CANARY" not in json.dumps(found)


@scenario(**LOCKED)
async def test_the_chain_survives_restarts_and_unloading(broker: BrokerInMemory) -> None:
    for _ in range(2):
        await client_of(broker, "kitchen")
        await broker.broker.topics.unload(TOPIC)
        kitchen = await client_of(broker, "kitchen")
        assert await kitchen.subscribe(ORDERS) == ServerError.AuthorizationError
        await asyncio.sleep(5)
        await broker.restart()
    found = await records(broker)
    assert operations(found) == ["start", "SUBSCRIBE", "stop"] * 2 + ["start"]
    assert [each["seq"] for each in found] == list(range(7))
    assert checked(found) == []


@scenario(**LOCKED)
async def test_a_deleted_topic_is_made_again_and_the_loss_shows(broker: BrokerInMemory) -> None:
    await records(broker)
    await broker.broker.deletion.delete_topic(TOPIC, force=True)
    kitchen = await client_of(broker, "kitchen")
    await kitchen.subscribe(ORDERS)
    await asyncio.sleep(5)
    found = await records(broker)
    assert operations(found) == ["SUBSCRIBE"]
    [finding] = checked(found)
    assert "before it" in finding.problem


@scenario(**LOCKED)
async def test_nobody_publishes_to_it_and_only_super_users_read_it(broker: BrokerInMemory) -> None:
    await records(broker)
    for role, may_read in (("root", True), ("kitchen", False)):
        client = await client_of(broker, role)
        client.send(client.producer_command(str(TOPIC), "p"))
        assert await client.outcome() == ServerError.AuthorizationError
        code = await client.subscribe(str(TOPIC))
        assert (code == 0) is may_read


@scenario(auditEnabled=True)
async def test_nobody_publishes_to_it_without_authorization_either(broker: BrokerInMemory) -> None:
    await records(broker)
    client = Client(broker)
    client.send(client.producer_command(str(TOPIC), "p"))
    assert await client.outcome() == ServerError.AuthorizationError
    assert operations(await records(broker)) == ["start"]


@scenario(auditEnabled=True, encryptionRequireOnProducer=True, brokerDeduplicationEnabled=True)
async def test_rules_for_producers_do_not_concern_it(broker: BrokerInMemory) -> None:
    assert operations(await records(broker)) == ["start"]
    policies = (await broker.broker.topics.load(TOPIC)).policies
    assert not policies.deduplication
    assert policies.retention_minutes == 30 * 24 * 60
    assert policies.table_retention_minutes == -1
    assert policies.backlog_by_size.limit == -1
    assert not policies.inactive.delete
    assert not is_due(policies, 365 * 86_400_000)


@scenario(auditEnabled=True)
async def test_what_is_written_has_a_schema_and_a_time(broker: BrokerInMemory) -> None:
    await records(broker)
    topic = await broker.broker.topics.load(TOPIC)
    [entry] = await topic.entries.read(Position(0, 0), 1, 1)
    from pulsark.wire.entry import entry_metadata

    metadata = entry_metadata(entry.data)
    schema = await broker.broker.schemas.get(TOPIC)
    assert metadata.schema_version == schema.version.to_bytes(8, "big")
    assert metadata.event_time == (await records(broker))[0]["time"]
    names = [field["name"] for field in json.loads(schema.schema.data)["fields"]]
    assert set((await records(broker))[0]) <= set(names)


@scenario(**ON, auditDataAccess=True)
async def test_who_has_which_data_is_noted(broker: BrokerInMemory) -> None:
    kitchen = await client_of(broker, "kitchen")
    await kitchen.produce(ORDERS, 0)
    assert await kitchen.subscribe(ORDERS) == 0
    again = await client_of(broker, "kitchen")
    await again.produce(ORDERS, 0)
    _, _, produced, _, consumed = await records(broker)
    assert (produced["operation"], consumed["operation"]) == ("produce", "consume")
    for event in (produced, consumed):
        assert event["actor"]["role"] == "kitchen"
        assert event["resource"]["name"] == ORDERS
        assert event["src_endpoint"]["ip"] == "10.0.0.1"


@scenario(**LOCKED, auditDataAccess=True)
async def test_who_is_denied_has_no_data(broker: BrokerInMemory) -> None:
    kitchen = await client_of(broker, "kitchen")
    assert await kitchen.subscribe(ORDERS) == ServerError.AuthorizationError
    assert operations(await records(broker)) == ["start", "SUBSCRIBE"]


@scenario(auditEnabled=True, maxPublishRatePerTopicInMessages=10)
async def test_a_rate_that_holds_producers_for_long_is_noted(broker: BrokerInMemory) -> None:
    client = Client(broker)
    await client.produce(ORDERS, 0)
    for number in range(60):
        client.send_bytes(b"".join(publish(1, 10 * number + i, b"") for i in range(10)))
        await asyncio.sleep(0.5)
    _, made, throttled = await records(broker)
    assert made["operation"] == "PRODUCER"
    assert (throttled["operation"], throttled["via"]) == ("throttled", "broker")
    assert throttled["resource"]["name"] == ORDERS
    assert 10_000 <= throttled["duration_ms"] < 20_000


@scenario(auditEnabled=True, maxPublishRatePerTopicInMessages=10)
async def test_a_short_burst_is_not(broker: BrokerInMemory) -> None:
    client = Client(broker)
    await client.produce(ORDERS, 0)
    client.send_bytes(b"".join(publish(1, i, b"") for i in range(50)))
    await asyncio.sleep(30)
    assert operations(await records(broker)) == ["start", "PRODUCER"]


def test_an_end_that_cannot_be_read_does_not_silence_the_audit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read again for a while; then a new chain begins, and the break shows."""

    @scenario(auditEnabled=True, auditFailClosed=True)
    async def run(broker: BrokerInMemory) -> None:
        await records(broker)
        read = TopicEntries.read
        tries = 0

        async def failing(self: TopicEntries, position: Position, *how: int) -> list[Entry]:
            nonlocal tries
            if self.ledger.last_confirmed == position:
                tries += 1
                raise CorruptEntryError("a bit has flipped")
            return await read(self, position, *how)

        monkeypatch.setattr(TopicEntries, "read", failing)
        await broker.restart()
        await asyncio.sleep(5)
        audit = broker.broker.audit
        assert audit is not None
        assert audit.is_stuck
        await asyncio.sleep(120)
        assert not audit.is_stuck
        assert tries == AUDIT_HEAD_TRIES
        monkeypatch.undo()
        found = await records(broker)
        assert operations(found) == ["start", "stop", "start"]
        assert len(checked(found)) == 1

    run()
    assert "its records begin a new chain" in caplog.text


@scenario(auditEnabled=True)
async def test_events_wait_while_the_topic_is_over_its_quota(broker: BrokerInMemory) -> None:
    await records(broker)
    audit, over = broker.broker.audit, broker.broker.loader.over_quota
    assert audit is not None
    over.add(TOPIC.namespace_name)
    await broker.broker.topics.unload(TOPIC)
    audit.broker("waits")
    await asyncio.sleep(10)
    assert audit.is_stuck
    over.clear()
    await asyncio.sleep(30)
    found = await records(broker)
    assert operations(found) == ["start", "waits"]
    assert checked(found) == []
    assert not audit.is_stuck
