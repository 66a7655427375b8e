"""The HTTP port: lazy, bounded, and nothing is lost when uvicorn takes over."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsark.admin import server as server_module
from pulsark.admin.app import RawPaths
from pulsark.admin.http.errors import refuse
from pulsark.admin.server import AdminServer, is_probe
from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import ConfigError
from pulsark.limits import HTTP_BODY_BYTES_MAX, HTTP_LOBBY_MIN, HTTP_READ_BYTES_MAX
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.runtime import Clock, Runtime, SystemClock
from pulsark.storage.ledger.manager import LedgerManager
from tests.sim.disk import SimDisk
from tests.support.inline_table import inline_tables
from tests.support.logging_in import SECRET, SetClock, inline, token
from tests.support.memory_bookie import MemoryBookie

GET = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"


def on_port(
    test: Callable[[int, AdminServer], Awaitable[None]],
    clock: Clock | None = None,
    **changed: Any,
) -> None:
    async def run() -> None:
        runtime = Runtime(disk=SimDisk(), clock=clock or SystemClock())
        metadata = MemoryMetadataStore()
        tables = inline_tables(["/table"], metadata, runtime)
        ledgers = LedgerManager(metadata, {"b1": MemoryBookie()}, runtime, tables)
        broker = Broker(Settings(**changed), runtime, metadata, ledgers, tables)
        await broker.start(ServiceUrls("pulsar://b:6650", "http://b:8080", "grpc://b:8815"))
        server = AdminServer(broker)
        port = server.listen(["127.0.0.1"], 0)
        try:
            await asyncio.wait_for(test(port, server), 60)
        finally:
            await server.close()
            await broker.close()

    asyncio.run(run())


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    for line in head.split(b"\r\n"):
        name, _, length = line.partition(b":")
        if name.lower() == b"content-length":
            return status, await reader.readexactly(int(length))
    return status, b""


def test_requests_on_one_connection() -> None:
    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        for _ in range(3):
            writer.write(GET)
            assert await response(reader) == (200, b'["standalone"]')
        writer.close()

    on_port(check)


def test_what_arrives_before_uvicorn_is_ready() -> None:
    """Split heads, a body, and further requests in the same packet all survive."""
    body = json.dumps({"allowedClusters": ["standalone"]}).encode()
    put = (
        b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )

    async def check(port: int, server: AdminServer) -> None:
        first, second, third = [await connect(port) for _ in range(3)]
        first[1].write(GET + GET)
        second[1].write(put[:10])
        await asyncio.sleep(0)
        second[1].write(put[10:] + body[:5])
        assert [await response(first[0]) for _ in "12"] == [(200, b'["standalone"]')] * 2
        second[1].write(body[5:])
        assert (await response(second[0]))[0] == 204
        third[1].write(b"GET /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await response(third[0]))[0] == 200
        for _, writer in (first, second, third):
            writer.close()

    on_port(check)


UNFINISHED = {
    "body": b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    "chunk": b"PUT / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    "head of the next request": GET + GET[:-5],
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_a_request_that_never_ends_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """However often another byte comes, and whatever was answered before."""
    monkeypatch.setattr("pulsark.admin.timed_connection.HTTP_REQUEST_SECONDS", 0.2)

    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(data)

        async def drip() -> None:
            while True:
                await asyncio.sleep(0.01)
                writer.write(b"x")

        dripping = asyncio.create_task(drip())
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass
        finally:
            dripping.cancel()
            writer.close()
        assert server._http is not None
        assert server._http.connections == 0

    on_port(check)


def test_only_a_request_that_is_not_whole_has_to_hurry() -> None:
    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(GET)
        assert (await response(reader))[0] == 200
        assert server._http is not None
        served: Any = next(iter(server._http._state.connections))
        assert served._unfinished is None
        writer.write(GET[:20])
        while served._unfinished is None:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        writer.write(GET[20:])
        assert (await response(reader))[0] == 200
        assert served._unfinished is None
        writer.close()

    on_port(check)


def test_a_client_that_does_not_read_its_answer_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pulsark.admin.timed_connection.HTTP_UNREAD_SECONDS", 0.2)

    async def check(port: int, server: AdminServer) -> None:
        _, writer = await connect(port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        ask = GET.replace(b"/admin/v2/clusters", b"/admin/openapi.json")
        while server._http is None or server._http.connections:
            writer.write(ask)
            await asyncio.sleep(0.01)
        writer.close()

    on_port(check)


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_waits_when_the_broker_stops_is_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    """As for a metadata store that does not answer: what became of its change is not known."""
    monkeypatch.setattr("pulsark.admin.uvicorn_app.HTTP_CLOSE_SECONDS", 0)

    async def check(port: int, server: AdminServer) -> None:
        waiting = asyncio.Event()

        async def app(self: object, scope: Any, receive: Any, send: Any) -> None:
            if begun:
                head = {"type": "http.response.start", "status": 200, "headers": []}
                await send(head)
                await send({"type": "http.response.body", "body": b"[", "more_body": True})
            waiting.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(RawPaths, "__call__", app)
        reader, writer = await connect(port)
        writer.write(GET)
        await waiting.wait()
        await server.close()
        answer = await reader.read()
        writer.close()
        assert (b" 503 " in answer, b"this broker stops" in answer) == (not begun, not begun)

    on_port(check)
    told = [record for record in caplog.records if record.name.startswith("pulsark.admin")]
    assert [record.getMessage() for record in told] == [
        "GET /admin/v2/clusters is not answered: this broker stops"
    ]
    assert not [record for record in caplog.records if record.exc_info]


def test_a_header_does_not_say_where_a_request_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = []

    async def app(self: object, scope: Any, receive: Any, send: Any) -> None:
        found.append((scope["client"][0], scope["scheme"]))
        await refuse(send, 403, "seen")

    monkeypatch.setattr(RawPaths, "__call__", app)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")

    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        head = b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nHost"
        writer.write(GET.replace(b"Host", head))
        assert await response(reader) == (403, b"")
        writer.close()

    on_port(check)
    assert found == [("127.0.0.1", "http")]


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check(port: int, server: AdminServer) -> None:
        _, writer = await connect(port)
        writer.write(
            UNFINISHED["body"].replace(b"Content-L", b"Content-Type: text/json\r\nContent-L")
        )
        while server._http is None or not server._http._state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.close()
        while server._http.connections or server._http._state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    on_port(check)
    assert caplog.records == []


def test_garbage_gets_400() -> None:
    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(b"\x00\x00\x00\x08\x00\x00\x00\x04\r\n\r\n")
        assert (await response(reader))[0] == 400
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()

    on_port(check)


def test_a_head_without_end_is_refused() -> None:
    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000)
        assert (await response(reader))[0] == 431
        assert await reader.read() == b""
        writer.close()

    on_port(check)


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HTTP_HEAD_TIMEOUT_SECONDS", 0.01)

    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(b"GET /")
        assert await reader.read() == b""
        writer.close()

    on_port(check)


def test_a_request_that_came_in_time_waits_for_a_slow_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "HTTP_HEAD_TIMEOUT_SECONDS", 0.01)
    load = server_module.run_in_worker

    async def slowly(worker: Any, job: Any) -> Any:
        await asyncio.sleep(0.05)
        return await load(worker, job)

    monkeypatch.setattr(server_module, "run_in_worker", slowly)

    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(GET)
        assert (await response(reader))[0] == 200
        writer.close()

    on_port(check)


def test_the_import_may_begin_before_anybody_asks() -> None:
    async def check(port: int, server: AdminServer) -> None:
        server.load_soon()
        assert server._loading is not None
        await server._loading
        imported = server._http
        server.load_soon()  # that was it
        reader, writer = await connect(port)
        writer.write(GET)
        assert await response(reader) == (200, b'["standalone"]')
        assert server._http is imported is not None
        writer.close()

    on_port(check)


def test_a_program_without_its_sources_serves_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(what: object) -> None:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsourcelines", without)
    test_requests_on_one_connection()


def test_at_the_limit_an_idle_connection_makes_room() -> None:
    async def check(port: int, server: AdminServer) -> None:
        idle, next_one = await connect(port), await connect(port)
        idle[1].write(GET)
        assert (await response(idle[0]))[0] == 200
        next_one[1].write(GET)
        assert (await response(next_one[0]))[0] == 200
        with contextlib.suppress(ConnectionError):
            assert await idle[0].read() == b""
        idle[1].close()
        next_one[1].close()

    on_port(check, maxHttpServerConnections=1)


@pytest.mark.parametrize(
    ("head", "probes"),
    [
        (b"GET /status.html HTTP/1.1\r\n", True),
        (b"HEAD /status.html HTTP/1.1\r\n", True),
        (b"GET /admin/v2/brokers/health?topicVersion=V2 HTTP/1.1\r\n", True),
        (b"GET /metrics/ HTTP/1.1\r\n", True),
        (b"PUT /status.html HTTP/1.1\r\n", False),
        (b"GET /admin/v2/tenants HTTP/1.1\r\n", False),
        (b"GET /status.html/../admin HTTP/1.1\r\n", False),
        (b"", False),
    ],
)
def test_probes_are_known_by_their_first_line(head: bytes, probes: bool) -> None:
    assert is_probe(head) is probes


def test_half_open_connections_do_not_shut_the_port() -> None:
    async def check(port: int, server: AdminServer) -> None:
        half = [await connect(port) for _ in range(HTTP_LOBBY_MIN + 40)]
        for _, writer in half:
            writer.write(b"GET /status.html HTTP/1.1\r\n")
        asking = await connect(port)
        asking[1].write(GET)
        assert (await response(asking[0]))[0] == 200
        for _, writer in (*half, asking):
            writer.close()

    on_port(check, maxHttpServerConnections=20)


def test_closing_ends_open_connections() -> None:
    async def check(port: int, server: AdminServer) -> None:
        served, waiting = await connect(port), await connect(port)
        served[1].write(GET)
        assert (await response(served[0]))[0] == 200
        await server.close()
        assert await served[0].read() == b""
        assert await waiting[0].read() == b""
        with pytest.raises(ConnectionRefusedError):
            await connect(port)
        served[1].close()
        waiting[1].close()

    on_port(check)


def test_a_port_in_use_is_named() -> None:
    async def check(port: int, server: AdminServer) -> None:
        with pytest.raises(ConfigError, match=rf"webServicePort: port {port} is in use"):
            AdminServer(server._broker).listen(["127.0.0.1"], port)

    on_port(check)


def test_nothing_heavy_is_imported_to_listen() -> None:
    code = "import sys, pulsark.admin.server; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client", "pyarrow", "rich"}
    assert not heavy & set(done.stdout.split())


def test_a_flood_of_failures_leaves_its_address_some_logins_a_second() -> None:
    def get(credentials: bytes) -> bytes:
        return GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer " + credentials + b"\r\n\r\n")

    async def check(port: int, server: AdminServer) -> None:
        async def status(credentials: bytes) -> int:
            """0 if the connection is closed before anybody looks at the request."""
            reader, writer = await connect(port)
            try:
                writer.write(get(credentials))
                return (await response(reader))[0]
            except (OSError, asyncio.IncompleteReadError):
                return 0
            finally:
                writer.close()

        assert [await status(b"forged") for _ in range(3)] == [401, 401, 0]
        assert await status(token()) == 0
        clock.ms += 101  # a place comes back
        assert [await status(token()) for _ in range(5)] == [200] * 5
        reader, writer = await connect(port)  # what needs no login costs no place
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in await reader.read()
        writer.close()
        reader, writer = await connect(port)
        for _ in range(3):  # one connection gives one place back
            writer.write(get(token()))
            assert (await response(reader))[0] == 200
        writer.close()
        assert [await status(b"forged") for _ in range(2)] == [401, 0]

    clock = SetClock()
    locked = {
        "authenticationEnabled": True,
        "authenticationProviders": ("token",),
        "tokenSecretKey": inline(SECRET),
        "maxFailedLoginsPerSecondPerIp": 10,
    }
    on_port(check, clock, **locked)


@pytest.mark.parametrize("length", [b"5", b"100"])
def test_a_request_with_two_lengths_is_refused_and_the_next_one_not_read(length: bytes) -> None:
    lengths = b"Content-Length: " + length + b"\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(GET.removesuffix(b"\r\n") + lengths + b"0\r\n\r\n" + GET)
        assert (await response(reader))[0] == 400
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()

    on_port(check)


def test_a_body_is_not_read_before_its_request_has_its_turn() -> None:
    """The first request of a connection waits for its turn, too."""

    async def check(port: int, server: AdminServer) -> None:
        reader, writer = await connect(port)
        writer.write(GET)
        assert (await response(reader))[0] == 200  # uvicorn is imported
        queue = server._broker.run_queue
        late, queue.is_late = queue.is_late, lambda: True  # type: ignore[method-assign]
        postponed = list[Callable[[], object]]()
        queue.postpone = lambda work, lane: postponed.append(work)  # type: ignore[method-assign]
        body = b" " * HTTP_BODY_BYTES_MAX
        head = b"PUT /admin/v2/spark-queries/q HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        begun = [await connect(port) for _ in range(8)]
        for _, flooder in begun:
            flooder.write(head + body)
        await asyncio.sleep(0.2)
        held = [
            sum(map(len, connection._postponed))
            for connection in server._http._state.connections  # type: ignore[union-attr]
        ]
        assert max(held) <= HTTP_READ_BYTES_MAX
        queue.is_late = late  # type: ignore[method-assign]
        del queue.postpone
        for work in postponed:
            work()
        for flooded, flooder in begun:
            assert (await response(flooded))[0] < 500
            flooder.close()
        writer.close()

    on_port(check)
