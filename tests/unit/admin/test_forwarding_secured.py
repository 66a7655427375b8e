"""Who may do what, and what is noted of it, is the same through any broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.security.broker_calls import HEADER
from tests.support.admin_api import NAMESPACE, Answer
from tests.support.logging_in import SECRET, inline, token
from tests.support.two_brokers import Node, TwoBrokers

TOPIC = "persistent://public/default/t"
BASE = "persistent://public/default/p"
EARLIEST = {"ledgerId": -1, "entryId": -1}
SECURED: dict[str, Any] = {
    "authenticationEnabled": True,
    "authenticationProviders": ("token",),
    "tokenSecretKey": inline(SECRET),
    "authorizationEnabled": True,
    "superUserRoles": ("root",),
}


class Secured(TwoBrokers):
    """With authorization and an audit, whose events a test takes before they are written."""

    def __init__(self) -> None:
        super().__init__(**SECURED)
        for node in self.nodes:
            writer = node.broker._audit_writer
            assert writer is not None
            assert writer._task is not None
            writer._task.cancel()
            self.events(node)

    def as_role(self, role: str, node: Node, method: str, target: str, body: Any = None) -> Answer:
        bearer = f"Bearer {token({'sub': role, 'jti': 'id-1'}).decode()}"
        headers = {"authorization": bearer, "user-agent": "a test"}
        return self.call(node, method, target, body, headers=headers)

    def events(self, node: Node) -> list[dict[str, Any]]:
        audit = node.broker.audit
        assert audit is not None
        return [each.event for each in audit.waiting.take(1000)]

    def grant(self, role: str, *actions: str) -> None:
        path = f"/admin/v2/namespaces/public/default/permissions/{role}"
        assert self.as_role("root", self.a, "POST", path, list(actions)).status < 300


@pytest.fixture
def both() -> Iterator[Secured]:
    found = Secured()
    yield found
    found.close()


def test_what_a_role_may_not_do_at_the_owner_it_may_not_do_elsewhere(both: Secured) -> None:
    topic = both.topic(TOPIC, both.b)
    both.grant("reader", "consume")
    for method, tail, body in (
        ("POST", "terminate", None),
        ("PUT", "unload", None),
        ("DELETE", "", None),
        ("PUT", "properties", {"a": "b"}),
    ):
        target = f"{NAMESPACE}/t/{tail}".rstrip("/")
        answers = [both.as_role("reader", node, method, target, body) for node in both.nodes]
        assert answers[0].status in (401, 403)
        assert (answers[0].status, answers[0].json) == (answers[1].status, answers[1].json)
    assert both.topic(TOPIC, both.b) is topic
    assert not topic.ledger.is_terminated
    assert [event["status_id"] for event in both.events(both.a)][-4:] == [2] * 4


def test_the_client_itself_is_judged_by_the_owner(both: Secured) -> None:
    topic = both.topic(TOPIC, both.b)
    both.grant("reader", "consume")
    both.events(both.a)
    path = f"{NAMESPACE}/t/subscription/s"
    made = both.as_role("reader", both.a, "PUT", path, EARLIEST)
    assert made.status == 204
    assert list(topic.subscriptions) == ["s"]


def test_nobody_gets_through_another_broker_without_a_login(both: Secured) -> None:
    both.topic(TOPIC, both.b)
    for node in both.nodes:
        assert both.call(node, "GET", f"{NAMESPACE}/t/stats").status == 401
    refused = both.call(both.b, "GET", f"{NAMESPACE}/t/stats", headers={HEADER: "e30.00"})
    assert refused.status == 403


def test_what_is_sent_on_is_noted_once_and_by_the_owner(both: Secured) -> None:
    both.topic(TOPIC, both.b)
    answer = both.as_role("root", both.a, "PUT", f"{NAMESPACE}/t/properties", {"a": "b"})
    assert answer.status == 204
    assert both.events(both.a) == []
    [event] = both.events(both.b)
    assert (
        event["operation"]
        == "PUT /admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}/properties"
    )
    assert event["actor"] == {"role": "root", "method": "token", "token_id": "id-1"}
    assert event["request_id"] == answer.headers["x-request-id"]
    assert event["src_endpoint"]["ip"] == "127.0.0.1"
    assert event["src_endpoint"]["port"] != 0
    assert "a test" in json.dumps(event)


def test_what_gets_no_answer_is_noted_where_it_came(both: Secured) -> None:
    both.topic(TOPIC, both.b)
    both.run(both.b.server.close())
    answer = both.as_role("root", both.a, "PUT", f"{NAMESPACE}/t/properties", {"a": "b"})
    assert answer.status == 503
    [event] = both.events(both.a)
    assert event["http"]["status"] == 503
    assert event["request_id"] == answer.headers["x-request-id"]


def test_parts_are_noted_as_the_one_request_that_they_are_of(both: Secured) -> None:
    both.partitioned(BASE, 6)
    path = f"{NAMESPACE}/p/subscription/s"
    assert both.as_role("root", both.a, "PUT", path, EARLIEST).status == 204
    assert len(both.events(both.a)) == 1
    assert both.events(both.b) == []
    both.grant("reader", "consume")
    both.events(both.a)
    denied = both.as_role("reader", both.a, "PUT", f"{NAMESPACE}/p/unload")
    assert denied.status == 401
    assert len(both.events(both.a)) == 1
    assert both.events(both.b) == []


def test_a_client_that_hangs_up_ends_its_call(both: Secured) -> None:
    """The broker that is asked for it sees that nobody waits any more."""

    async def ask_and_go() -> None:
        asked, gone = asyncio.Event(), asyncio.Event()

        async def owner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            assert await reader.read() == b""
            gone.set()
            writer.close()

        server = await asyncio.start_server(owner, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        both.a.knows.forced[TOPIC] = [
            both.a.peer._replace(broker_id="x", web_url=f"http://127.0.0.1:{port}")
        ]
        host, _, own = both.a.peer.broker_id.partition(":")
        _, client = await asyncio.open_connection(host, int(own))
        bearer = token({"sub": "root"}).decode()
        client.write(
            f"GET {NAMESPACE}/t/stats HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {bearer}\r\n\r\n".encode()
        )
        await asked.wait()
        client.close()
        await gone.wait()
        server.close()

    both.run(ask_and_go())


def test_an_answer_of_any_size_passes_in_pieces(both: Secured) -> None:
    size = 64 << 20
    waiting: list[int] = []

    async def ask_slowly() -> None:
        async def owner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nX-A: b\r\n\r\n"
            writer.write(head.encode())
            sent = 0
            while sent < size:
                writer.write(bytes(1 << 16))
                sent += 1 << 16
                waiting.append(sent)
                await writer.drain()

        server = await asyncio.start_server(owner, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        both.a.knows.forced[TOPIC] = [
            both.a.peer._replace(broker_id="x", web_url=f"http://127.0.0.1:{port}")
        ]
        host, _, own = both.a.peer.broker_id.partition(":")
        client, writer = await asyncio.open_connection(host, int(own), limit=1 << 16)
        bearer = token({"sub": "root"}).decode()
        writer.write(
            f"GET {NAMESPACE}/t/stats HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {bearer}\r\n\r\n".encode()
        )
        head = await client.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"x-a: b" in head.lower()
        before = 0
        while waiting[-1] != before:  # until nobody takes any more
            before = waiting[-1]
            await asyncio.sleep(0.2)
        assert before < size // 2
        left = size
        while left:
            left -= len(await client.read(1 << 20))
        writer.close()
        server.close()

    both.run(ask_slowly())
