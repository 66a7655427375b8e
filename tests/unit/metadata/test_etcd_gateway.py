"""Calls to servers that answer as etcd does when something is wrong."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.etcd import connection, gateway, messages
from pulsark.metadata.etcd.access import EtcdAccess
from pulsark.metadata.etcd.address import EtcdAddress, Server
from pulsark.metadata.etcd.gateway import Gateway, RefusedError
from pulsark.metadata.etcd.layout import Layout
from pulsark.metadata.etcd.marks import Marks
from pulsark.metadata.etcd.transactions import Transactions

Respond = Callable[[str, int], Awaitable[bytes | None] | bytes | None]
GOOD = b'{"header": {"cluster_id": "1", "revision": "5"}}'
SOON = 0.1


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **values: object) -> None:
        asyncio.run(test(*args, **values))

    return run


class FakeEtcd:
    """Answers each request with what a function says, by its path and number; None cuts it."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.paths: list[str] = []

    async def start(self) -> Server:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Server("127.0.0.1", self._listener.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1].decode()
                lines = head.split(b"\r\n")
                length = next(int(x[15:]) for x in lines if x[:15] == b"content-length:")
                await reader.readexactly(length)
                self.paths.append(path)
                answer = self._respond(path, len(self.paths) - 1)
                if isinstance(answer, Awaitable):
                    answer = await answer
                if answer is None:
                    break
                status = b"400 Bad Request" if b'"code"' in answer else b"200 OK"
                length_line = b"content-length: %d" % len(answer)
                writer.write(b"HTTP/1.1 %s\r\n%s\r\n\r\n%s" % (status, length_line, answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.transport.abort()


async def started(respond: Respond) -> tuple[FakeEtcd, Gateway]:
    etcd = FakeEtcd(respond)
    return etcd, Gateway(EtcdAddress((await etcd.start(),)), EtcdAccess(), 10)


def soon(seconds: float = SOON) -> float:
    return asyncio.get_running_loop().time() + seconds


def failure(code: int, message: str = "it failed") -> bytes:
    return json.dumps({"error": message, "message": message, "code": code}).encode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failure(3), RefusedError),
        (failure(5), RefusedError),
        (failure(7), RefusedError),
        (failure(8), RefusedError),
        (failure(16), RefusedError),
        (failure(1), OutcomeUnknownError),
        (failure(2), OutcomeUnknownError),
        (failure(4), OutcomeUnknownError),
        (failure(13), OutcomeUnknownError),
        (failure(14), OutcomeUnknownError),
        (None, OutcomeUnknownError),
        (b"", OutcomeUnknownError),
        (b"<html>", OutcomeUnknownError),
        (b"[]", OutcomeUnknownError),
    ],
)
@in_a_loop
async def test_a_write_is_sent_once_and_only_a_definite_answer_refuses_it(
    answer: bytes | None, error: type[Exception]
) -> None:
    etcd, client = await started(lambda path, number: answer)
    with pytest.raises(error) as found:
        await client.write("kv/txn", {}, soon(10))
    assert type(found.value) is error
    assert etcd.paths == ["/v3/kv/txn"]
    client.close()
    with pytest.raises(MetadataRefusedError, match="closed"):
        await client.write("kv/txn", {}, soon())


@pytest.mark.parametrize("answer", [None, failure(14)])
@in_a_loop
async def test_a_read_is_repeated_until_it_is_answered_or_late(answer: bytes | None) -> None:
    etcd, client = await started(lambda path, number: answer if number < 2 else GOOD)
    assert await client.read("kv/range", {}, soon(10)) == json.loads(GOOD)
    assert len(etcd.paths) == 3
    _, never = await started(lambda path, number: answer)
    with pytest.raises(MetadataError, match="in time") as found:
        await never.read("kv/range", {}, soon())
    assert not isinstance(found.value, MetadataRefusedError | OutcomeUnknownError)


@in_a_loop
async def test_who_closes_the_connection_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    _, client = await started(lambda path, number: None if number < 1 else GOOD)
    await client.read("kv/range", {}, soon(10))
    warning, recovery = caplog.messages
    assert warning.endswith("the connection ended before the answer did")
    assert "again" in recovery or "answers" in recovery
    client.close()


@in_a_loop
async def test_an_answer_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_BYTES_MAX", 1000)
    _, client = await started(lambda path, number: b"[" * 1001)
    with pytest.raises(OutcomeUnknownError, match="more than 1000 bytes"):
        await client.write("kv/txn", {}, soon(10))
    with pytest.raises(connection.BrokenError, match="more than 1000"):
        await anext(client.stream("watch", {}, 10))


@in_a_loop
async def test_a_session_is_kept_although_all_connections_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "CONNECTIONS_MAX", 2)
    hang = asyncio.Event()

    async def hanging() -> bytes:
        await hang.wait()
        return GOOD

    def respond(path: str, number: int) -> Awaitable[bytes] | bytes:
        return hanging() if path == "/v3/kv/txn" else GOOD

    etcd, client = await started(respond)
    busy = [asyncio.create_task(client.write("kv/txn", {}, soon(10))) for _ in range(2)]
    while len(etcd.paths) < len(busy):  # noqa: ASYNC110 - until they have arrived
        await asyncio.sleep(0)
    with pytest.raises(MetadataRefusedError, match="nothing was written"):
        await client.write("kv/txn", {}, soon(0.05))
    await client.read("lease/keepalive", {}, soon(10))
    hang.set()
    for task in busy:
        await task
    client.close()


@in_a_loop
async def test_another_cluster_is_not_listened_to() -> None:
    other = GOOD.replace(b'"1"', b'"2"')
    _, client = await started(lambda path, number: other if number else GOOD)
    told: list[bool] = []
    client.on_foreign(lambda: told.append(True))
    await client.read("kv/range", {}, soon(10))
    with pytest.raises(MetadataError, match="another cluster"):
        await client.read("kv/range", {}, soon(10))
    assert told == [True]


def answered(revision: int, history: int | None) -> bytes:
    """To a transaction whose comparison failed."""
    found = {} if history is None else {"kvs": [{"key": "YQ==", "mod_revision": str(history)}]}
    header = {"cluster_id": "1", "revision": str(revision)}
    return json.dumps({"header": header, "responses": [{"response_range": found}] * 2}).encode()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (answered(30, None), "no metadata store"),
        (answered(30, 3), "an older one"),
        (answered(19, 10), "older than what it had confirmed"),
        (b'{"header": {"revision": "19"}, "succeeded": true}', "older than what"),
    ],
)
@in_a_loop
async def test_a_server_that_lost_what_it_had_ends_the_session_and_is_not_believed(
    answer: bytes, problem: str
) -> None:
    _, client = await started(lambda path, number: answer)
    ends: list[str] = []
    marks = Marks()
    marks.learn(b"", 10)
    marks.reached(20)
    session = Transactions(client, Layout(""), marks, b"session", ends.append)
    with pytest.raises(MetadataRefusedError, match=problem):
        await session.read([messages.get(b"a")], soon(10))
    assert len(ends) == 1
    assert marks.revision == 20


@in_a_loop
async def test_who_has_no_session_any_more_writes_nothing() -> None:
    gone = json.loads(answered(30, 10))
    gone["responses"][1] = {"response_range": {}}
    answers = [json.dumps(gone).encode(), failure(5, "requested lease not found")]
    _, client = await started(lambda path, number: answers[number])
    ends: list[str] = []
    marks = Marks()
    marks.learn(b"", 10)
    session = Transactions(client, Layout(""), marks, b"session", ends.append)
    for _ in answers:
        with pytest.raises(MetadataRefusedError):
            await session.write([], [], [], soon(10))
    assert len(ends) == 2
