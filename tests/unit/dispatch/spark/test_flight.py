"""The Flight port with real clients over a fake broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from pulsark.dispatch.spark.flight_listener import FlightListener, TopicRange
from pulsark.dispatch.spark.flight_relay import Relays, SilentClients
from pulsark.dispatch.spark.flight_requests import PREFACE
from pulsark.dispatch.spark.flight_server import (
    CHUNK_BYTES,
    ENTRY_SCHEMA,
    EntryFlightServer,
    EntryTicket,
)
from pulsark.errors import ClientError, ConfigError, ServerError, StorageError
from pulsark.limits import FLIGHT_LOGIN_SURE_SECONDS, FLIGHT_PREFACE_SECONDS
from pulsark.wire.flight_refusals import INVALID, NOT_FOUND
from pulsark.wire.position import Position

TOPIC = "persistent://public/default/t"
T = TypeVar("T")


class FakeSource:
    """Entries in memory; every call is noted."""

    def __init__(self, entries: dict[Position, bytes]) -> None:
        self.entries = dict(sorted(entries.items()))
        self.calls: list[tuple[Position, int]] = []
        self.error: Exception | None = None

    async def topic_range(self, topic: str) -> TopicRange:
        if topic != TOPIC:
            raise ClientError(ServerError.TopicNotFound, f"Topic {topic} does not exist")
        positions = list(self.entries)
        return TopicRange("id-1", positions[0], positions[-1])

    async def read_entries(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        self.calls.append((first, max_bytes))
        if self.error is not None:
            raise self.error
        found: list[tuple[Position, bytes]] = []
        size = 0
        for position, entry in self.entries.items():
            if first <= position <= last and (size < max_bytes or not found):
                found.append((position, entry))
                size += len(entry)
        return found

    async def read_compacted(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        if first.ledger_id != 9:
            raise ClientError(ServerError.NotAllowedError, "compacted again")
        return [(Position(9, n), b"c%d" % n) for n in range(first.entry_id, last.entry_id + 1)]


def serve(source: FakeSource, use: Callable[[fl.FlightClient], T]) -> T:
    """Run ``use(client)`` in a thread while the listener serves on this loop."""

    async def run() -> T:
        listener = FlightListener(source)
        port = await listener.listen(["127.0.0.1"], 0)

        def with_client() -> T:
            with fl.connect(f"grpc://127.0.0.1:{port}") as client:
                return use(client)

        try:
            return await asyncio.to_thread(with_client)
        finally:
            await listener.close()

    return asyncio.run(run())


def ticket(first: tuple[int, int], last: tuple[int, int], **fields: Any) -> fl.Ticket:
    wanted = {"topic": TOPIC, "topicId": "id-1", "first": list(first), "last": list(last)}
    return fl.Ticket(json.dumps(wanted | fields).encode())


def small() -> FakeSource:
    return FakeSource({Position(5, i): b"entry-%d" % i for i in range(10)} | {Position(7, 0): b"z"})


def test_a_range_across_ledgers_arrives_complete_and_in_order() -> None:
    table = serve(small(), lambda c: c.do_get(ticket((5, 3), (7, 0))).read_all())
    assert table.schema == ENTRY_SCHEMA
    assert table["ledger_id"].to_pylist() == [5] * 7 + [7]
    assert table["entry_id"].to_pylist() == [3, 4, 5, 6, 7, 8, 9, 0]
    assert table["entry"].to_pylist()[0] == b"entry-3"


def test_chunks_are_bounded_and_read_one_ahead() -> None:
    entry = bytes(CHUNK_BYTES // 2)
    source = FakeSource({Position(1, i): entry for i in range(9)})

    def read_first(client: fl.FlightClient) -> list[int]:
        reader = client.do_get(ticket((1, 0), (1, 8)))
        return [chunk.data.num_rows for chunk in reader]

    assert serve(source, read_first) == [2, 2, 2, 2, 1]
    assert [first.entry_id for first, _ in source.calls] == [0, 2, 4, 6, 8]
    assert {size for _, size in source.calls} == {CHUNK_BYTES}


@pytest.mark.parametrize(
    ("calls", "size"), [(32, CHUNK_BYTES), (128, 1 << 20), (512, 256 << 10), (10**6, 64 << 10)]
)
def test_chunks_are_smaller_while_many_calls_are_under_way(
    monkeypatch: pytest.MonkeyPatch, calls: int, size: int
) -> None:
    monkeypatch.setattr(Relays, "calls", calls)
    source = small()
    assert serve(source, lambda c: c.do_get(ticket((5, 0), (7, 0))).read_all()).num_rows == 11
    assert {asked for _, asked in source.calls} == {size}


def test_a_range_beyond_the_end_is_empty() -> None:
    table = serve(small(), lambda c: c.do_get(ticket((9, 0), (9, 5))).read_all())
    assert table.num_rows == 0


def test_the_same_client_reads_many_times_and_clients_work_side_by_side() -> None:
    def use(client: fl.FlightClient) -> list[int]:
        readers = [client.do_get(ticket((5, i), (7, 0))) for i in range(8)]
        return [reader.read_all().num_rows for reader in readers]

    assert serve(small(), use) == [11, 10, 9, 8, 7, 6, 5, 4]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"nonsense", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"first": [0,0], "last": [0,0]}', "'topic' must be"),
        (b'{"topic": "t", "topicId": 3, "first": [0,0], "last": [0,0]}', "'topicId'"),
        (b'{"topic": "t", "first": [0], "last": [0,0]}', "'first' must be [ledgerId, entryId]"),
        (b'{"topic": "t", "first": [0,0], "last": [0,true]}', "'last' must be"),
        (b'{"topic": "t", "first": [0,0], "last": [0,9223372036854775808]}', "'last' must be"),
        (b'{"topic": "t", "first": [0,0], "last": [0,0], "compacted": 1}', "'compacted' must be"),
        (b" " * 20_000, "too large"),
    ],
)
def test_a_bad_ticket_says_what_is_wrong(data: bytes, says: str) -> None:
    with pytest.raises(fl.FlightServerError, match="ticket") as caught:
        EntryTicket.parse(data)
    assert says in str(caught.value)


def test_errors_reach_the_client_with_their_kind() -> None:
    source = small()

    def use(client: fl.FlightClient) -> None:
        with pytest.raises(fl.FlightServerError, match="not JSON"):
            client.do_get(fl.Ticket(b"{")).read_all()
        with pytest.raises(fl.FlightServerError, match=r"t/n/other does not exist"):
            client.do_get(ticket((0, 0), (1, 1), topic="t/n/other")).read_all()
        with pytest.raises(fl.FlightServerError, match="created again"):
            client.do_get(ticket((0, 0), (1, 1), topicId="id-0")).read_all()
        source.error = StorageError("bookie-1 is away")
        with pytest.raises(fl.FlightInternalError, match="bookie-1 is away"):
            client.do_get(ticket((5, 0), (5, 9))).read_all()
        source.error = ClientError(ServerError.ServiceNotReady, "not yet")
        with pytest.raises(fl.FlightUnavailableError, match="not yet"):
            client.do_get(ticket((5, 0), (5, 9))).read_all()

    serve(source, use)


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"{", INVALID),
        (ticket((0, 0), (1, 1), topic="t/n/other").ticket, NOT_FOUND),
        (ticket((0, 0), (1, 1), topicId="id-0").ticket, NOT_FOUND),
        (ticket((8, 0), (8, 1), compacted=True).ticket, INVALID),
    ],
)
def test_a_refusal_says_of_which_kind_it_is_and_shows_no_stack(data: bytes, refusal: bytes) -> None:
    def use(client: fl.FlightClient) -> None:
        with pytest.raises(fl.FlightServerError) as caught:
            client.do_get(fl.Ticket(data)).read_all()
        assert caught.value.extra_info == refusal
        # It is not only shown: pyarrow never frees the text of a stack that it sends.
        assert "Traceback" not in str(caught.value)

    serve(small(), use)


def test_a_defect_is_told_to_the_log_and_not_to_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = small()
    source.error = ZeroDivisionError("a defect")

    def use(client: fl.FlightClient) -> None:
        with pytest.raises(fl.FlightInternalError, match="its log says why") as caught:
            client.do_get(ticket((5, 0), (5, 9))).read_all()
        assert "defect" not in str(caught.value)
        assert "Traceback" not in str(caught.value)

    serve(source, use)
    assert "a defect" in caplog.text


def test_methods_that_are_not_served_are_refused_without_a_stack() -> None:
    def use(client: fl.FlightClient) -> None:
        for call in (client.list_flights, client.list_actions):
            with pytest.raises((fl.FlightUnauthorizedError, OSError), match="serves") as caught:
                list(call())
            assert "Traceback" not in str(caught.value)

    serve(small(), use)


def test_a_compacted_ledger_is_read_by_its_own_ids() -> None:
    def use(client: fl.FlightClient) -> list[bytes]:
        with pytest.raises(fl.FlightServerError, match="compacted again"):
            client.do_get(ticket((8, 0), (8, 1), compacted=True)).read_all()
        found = client.do_get(ticket((9, 2), (9, 4), compacted=True)).read_all()
        assert found.column("ledger_id").to_pylist() == [9, 9, 9]
        return found.column("entry").to_pylist()

    assert serve(small(), use) == [b"c2", b"c3", b"c4"]


def test_flight_info_names_the_whole_topic() -> None:
    def use(client: fl.FlightClient) -> pa.Table:
        info = client.get_flight_info(fl.FlightDescriptor.for_path(TOPIC))
        assert EntryTicket.parse(info.endpoints[0].ticket.ticket).topic_id == "id-1"
        with pytest.raises(fl.FlightServerError, match="path"):
            client.get_flight_info(fl.FlightDescriptor.for_command(b"x"))
        return client.do_get(info.endpoints[0].ticket).read_all()

    assert serve(small(), use).num_rows == 11


def test_a_client_that_stops_reading_does_not_block_close() -> None:
    source = FakeSource({Position(1, i): bytes(CHUNK_BYTES) for i in range(8)})

    def use(client: fl.FlightClient) -> int:
        return int(client.do_get(ticket((1, 0), (1, 7))).read_chunk().data.num_rows)

    assert serve(source, use) == 1
    assert len(source.calls) < 8


def test_only_this_user_reaches_the_server_behind_the_port() -> None:
    found: list[str] = []

    def use(port: int, listener: FlightListener) -> tuple[int, int]:
        count = rows(port)
        server = listener._server
        assert server is not None
        found.append(os.path.dirname(server.address))
        assert server.port <= 0  # it listens on no network
        return count, stat.S_IMODE(os.stat(found[0]).st_mode)

    assert with_idle(silent(0), use) == (11, 0o700)
    assert not os.path.exists(found[0])


def test_a_directory_too_deep_for_a_socket_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    async def run() -> None:
        EntryFlightServer(small(), asyncio.get_running_loop())

    with pytest.raises(OSError, match=r"TMPDIR: .* too long for a Unix socket, at most 103 bytes"):
        asyncio.run(run())
    assert list(deep.iterdir()) == []


def test_garbage_on_the_port_hurts_no_other_client() -> None:
    async def run() -> int:
        listener = FlightListener(small())
        port = await listener.listen(["127.0.0.1"], 0)

        def use() -> int:
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
                with contextlib.suppress(ConnectionResetError):
                    while raw.recv(4096):
                        pass
            with fl.connect(f"grpc://127.0.0.1:{port}") as client:
                return int(client.do_get(ticket((5, 0), (7, 0))).read_all().num_rows)

        try:
            return await asyncio.to_thread(use)
        finally:
            await listener.close()

    assert asyncio.run(run()) == 11


def with_idle(
    idle: Callable[[int], list[socket.socket]],
    use: Callable[[int, FlightListener], T],
    **given: Any,
) -> T:
    """Run ``use(port, listener)`` in a thread while ``idle(port)`` hold connections."""

    async def run() -> T:
        listener = FlightListener(small(), **given)
        port = await listener.listen(["127.0.0.1"], 0)

        def with_sockets() -> T:
            held = idle(port)
            try:
                return use(port, listener)
            finally:
                for each in held:
                    each.close()

        try:
            return await asyncio.to_thread(with_sockets)
        finally:
            await listener.close()

    return asyncio.run(run())


def rows(port: int) -> int:
    with fl.connect(f"grpc://127.0.0.1:{port}") as client:
        return int(client.do_get(ticket((5, 0), (7, 0))).read_all().num_rows)


def silent(count: int, said: bytes = b"") -> Callable[[int], list[socket.socket]]:
    def connect(port: int) -> list[socket.socket]:
        found = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for each in found:
            each.sendall(said)
        return found

    return connect


@pytest.mark.parametrize("said", [b"", b"PRI"])
def test_a_silent_client_costs_no_thread_and_no_connection(said: bytes) -> None:
    def use(port: int, listener: FlightListener) -> tuple[int, int]:
        threads = threading.active_count()
        return rows(port), len(listener._relays) if threading.active_count() < threads + 20 else -1

    found, relays = with_idle(silent(300, said), use, most=2)
    assert found == 11
    assert relays <= 2


def test_the_oldest_clients_leave_the_lobby_first_and_in_time() -> None:
    clock = Clock()
    lobby = SilentClients(2, FLIGHT_PREFACE_SECONDS, clock.monotonic)
    pairs = [socket.socketpair() for _ in range(3)]
    (one, _), (two, speaks), (three, babbles) = pairs
    assert lobby.enter(one) == []
    clock.now += 1
    assert lobby.enter(two) == []
    assert lobby.enter(three) == [one]
    speaks.sendall(PREFACE + b"more")
    assert lobby.leave(two)
    assert two.recv(100) == PREFACE + b"more"
    clock.now += FLIGHT_PREFACE_SECONDS - 0.5
    assert lobby.late() == []
    clock.now += 0.5
    assert lobby.late() == [three]
    babbles.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    lobby.enter(three)
    assert not lobby.leave(three)
    assert len(lobby) == 0
    for pair in pairs:
        for end in pair:
            end.close()


def test_at_the_limit_a_client_that_made_no_call_is_cut() -> None:
    clock = Clock()

    def use(port: int, listener: FlightListener) -> int:
        first = socket.create_connection(("127.0.0.1", port))
        first.sendall(PREFACE + b"\0\0\0\4\0\0\0\0\0")
        first.settimeout(10)
        said = b""
        while b"\0\0\0\4\1\0\0\0\0" not in said:  # the server has heard its settings
            said += first.recv(1000)
        clock.now += FLIGHT_LOGIN_SURE_SECONDS / 2
        with socket.create_connection(("127.0.0.1", port)) as refused:
            refused.sendall(PREFACE)
            refused.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert refused.recv(1) == b""
        clock.now += FLIGHT_LOGIN_SURE_SECONDS
        found = rows(port)
        with first, contextlib.suppress(ConnectionResetError):
            while first.recv(1000):
                pass
        return found

    assert with_idle(silent(0), use, most=1, clock=clock) == 11


def test_an_address_has_its_share_of_connections() -> None:
    def use(port: int, listener: FlightListener) -> int:
        held = silent(3, PREFACE)(port)
        closed = 0
        for each in held:
            each.settimeout(10)
            try:
                closed += each.recv(1) == b""
            except ConnectionResetError:
                closed += 1
        for each in held:
            each.close()
        return closed

    assert with_idle(silent(0), use, most=100, most_of_host=2, clock=Clock()) == 1


@pytest.mark.parametrize("error", [OSError("no descriptor"), ImportError("no pyarrow")])
def test_a_server_that_cannot_be_started_is_tried_again_by_the_next_client(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def use(port: int, listener: FlightListener) -> int:
        works = listener._backend_address

        def fails(_: object) -> int:
            monkeypatch.setattr(listener, "_backend_address", works)
            raise error

        monkeypatch.setattr(listener, "_backend_address", fails)
        refused = silent(1, PREFACE)(port)[0]
        with refused, contextlib.suppress(ConnectionResetError):
            refused.settimeout(10)
            assert refused.recv(1) == b""
        return rows(port)

    assert with_idle(silent(0), use, most=1) == 11


@pytest.mark.parametrize("started", [0, 1])
def test_without_a_thread_a_client_is_closed_and_does_not_count(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    left = iter([True] * started + [False] * (2 - started))
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if thread.name == "flight-copy" and not next(left):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    (client, peer), (backend, server) = connected(), connected()
    relays = Relays(1, 0, Clock().monotonic)
    relays.join(client, lambda: backend, "h")
    with peer, server:
        peer.settimeout(60)
        assert peer.recv(1) == b""
        for thread in threading.enumerate():
            if thread.name == "flight-copy":
                thread.join(60)
    assert len(relays) == relays._of_host.total() == 0


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 0


def test_a_port_in_use_is_one_clear_error() -> None:
    async def run() -> None:
        first = FlightListener(small())
        port = await first.listen(["127.0.0.1"], 0)
        try:
            with pytest.raises(ConfigError, match="flightServicePort"):
                await FlightListener(small()).listen(["127.0.0.1"], port)
        finally:
            await first.close()

    asyncio.run(run())


def test_listening_does_not_import_pyarrow() -> None:
    code = (
        "import asyncio, sys\n"
        "from pulsark.dispatch.spark.flight_listener import FlightListener\n"
        "async def run():\n"
        "    listener = FlightListener(None)\n"
        "    await listener.listen(['127.0.0.1'], 0)\n"
        "    await listener.close()\n"
        "asyncio.run(run())\n"
        "sys.exit('pyarrow' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Stuck(FakeSource):
    """What is read from its beginning on does not come."""

    def __init__(self) -> None:
        super().__init__(small().entries)
        self.stuck = 0

    async def read_entries(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        if first == Position(5, 0):
            self.stuck += 1
            await asyncio.Event().wait()
        return await super().read_entries(topic, first, last, max_bytes)


def test_of_too_many_calls_those_of_the_greediest_client_end() -> None:
    source = Stuck()
    alone = [("grpc.use_local_subchannel_pool", 1)]  # else clients share a connection

    def greedy(client: fl.FlightClient) -> None:
        with pytest.raises(fl.FlightUnavailableError):
            client.do_get(ticket((5, 0), (7, 0))).read_all()

    def use(port: int) -> int:
        where = f"grpc://127.0.0.1:{port}"
        with (
            fl.connect(where, generic_options=alone) as one,
            fl.connect(where, generic_options=alone) as other,
            ThreadPoolExecutor(4) as pool,
        ):
            asked = [pool.submit(greedy, one) for _ in range(4)]
            while source.stuck < 4:
                time.sleep(0.001)
            found: int = other.do_get(ticket((7, 0), (7, 0))).read_all().num_rows
            for each in asked:
                each.result(30)
        return found

    async def run() -> int:
        listener = FlightListener(source, most_calls=4)
        port = await listener.listen(["127.0.0.1"], 0)
        try:
            return await asyncio.to_thread(use, port)
        finally:
            await listener.close()

    assert asyncio.run(run()) == 1
