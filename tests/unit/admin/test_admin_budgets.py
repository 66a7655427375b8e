"""Memory of HTTP requests: bodies and unread answers of all clients are bounded together."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pyroaring import BitMap

from pulsark.admin.http import budgets
from pulsark.admin.http.requests import SLOT
from pulsark.admin.http.streams import BUILT_BYTES_MAX, is_light, json_pieces
from pulsark.admin.pulsar import scrapes as scrapes_module
from pulsark.admin.pulsar.scrapes import ScrapeAnswer, Scrapes
from pulsark.limits import HTTP_PIECE_BYTES, SCRAPE_PIECE_BYTES, SCRAPE_REUSE_SECONDS_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.admin_api import NAMESPACE, AdminApi, subscription_path

PEEK = f"{NAMESPACE}/t/examinemessage?initialPosition=earliest&messagePosition=1"
SIZE = 1 << 20


@pytest.fixture
def bomb(api: AdminApi) -> AdminApi:
    """A small entry with a large payload."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    metadata.compression, metadata.uncompressed_size = pb.ZLIB, SIZE
    api.store("t", build_entry(metadata, zlib.compress(bytes(SIZE))))
    return api


def gate_of(api: AdminApi) -> budgets.Budgets:
    found: budgets.Budgets = api._app._budgets
    return found


class Unread:
    """Requests whose client reads nothing: ``send`` of a piece does not return."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api
        self.statuses: list[int] = []
        self.bytes = 0
        self.reads = asyncio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])
            return
        self.bytes += len(message["body"])
        if message["more_body"] or len(message["body"]) >= HTTP_PIECE_BYTES:
            await self.reads.wait()

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def get(self, target: str, client: str = "10.0.0.1") -> None:
        path, _, query = target.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "root_path": "", "headers": [],
            "client": (client, 1), "state": {}, "server": ("127.0.0.1", 8080),
        }  # fmt: skip
        await self._api._app(scope, self.receive, self.send)


def test_unread_answers_of_all_clients_have_one_budget(
    bomb: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 8 * SIZE
    monkeypatch.setattr(gate_of(bomb), "answers", budgets.SharedBudget(limit))
    unread, other = Unread(bomb), Unread(bomb)

    async def run() -> None:
        tasks = [asyncio.create_task(unread.get(PEEK)) for _ in range(50)]
        await asyncio.sleep(1)
        assert unread.statuses.count(503) == 50 - 3
        assert unread.statuses.count(200) == 3
        assert gate_of(bomb).answers.held <= limit
        assert bomb.broker.output_buffer.bytes == gate_of(bomb).answers.held
        others = asyncio.create_task(other.get(PEEK, "10.0.0.2"))
        await asyncio.sleep(0.2)
        assert other.statuses == [200]
        unread.reads.set()
        other.reads.set()
        await asyncio.gather(*tasks, others)
        assert gate_of(bomb).answers.held == bomb.broker.output_buffer.bytes == 0
        assert unread.bytes >= 3 * SIZE
        again = Unread(bomb)
        again.reads.set()
        await again.get(PEEK)
        assert again.statuses == [200]
        assert again.bytes == SIZE

    bomb.run(run())


def test_a_client_with_its_share_is_told_when_to_try_again(
    bomb: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = budgets.SharedBudget(1)
    monkeypatch.setattr(gate_of(bomb), "answers", full)
    refused = bomb.get(PEEK)
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"
    assert "memory" in refused.reason
    assert bomb.get("/status.html").status == 200


def test_bodies_of_all_clients_have_one_budget(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_of(api), "bodies", budgets.SharedBudget(100_000))
    body = {"adminRoles": ["x" * 60_000]}
    refused = api.put("/admin/v2/tenants/a", body)
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"
    assert gate_of(api).bodies.held == 0
    assert api.put("/admin/v2/tenants/a", {"adminRoles": []}).status in (204, 412)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b'{"client":"x","topics":[' + b'"a",' * 260_000 + b'"b"]}', 413),
        (b"[" + b"[]," * 340_000 + b"[]]", 413),
        (b"[" + b'{"":1},' * 140_000 + b"{}]", 413),
        (b'{"client":"x","topics":["' + b",[{:" * 100_000 + b'"]}', 412),
        (b'{"client":"x","topics":["\\"' + b",[{:" * 100_000 + b'"]}', 412),
        (b'{"client":"x","topics":["' + b"\\" * 500_000 + b'"]}', 412),
    ],
)
def test_json_of_too_many_values_is_not_parsed(api: AdminApi, raw: bytes, status: int) -> None:
    header = {"content-type": "application/json"}
    answer = api.call("PUT", "/admin/v2/spark-queries/q", raw=raw, headers=header)
    assert answer.status == status, answer.body


def test_long_answers_are_built_in_steps_and_are_the_same(api: AdminApi) -> None:
    long = [{"name": f"é{n}", "of": [n, None, 1.5, {"a": []}]} for n in range(3000)]
    for thing in (
        [], {}, [[]], 1, "x" * 200_000, long, {"a": long, "b": {}, "c": [long]},
        {str(n): {} for n in range(5000)}, list(range(10_000)), (long, long),
    ):  # fmt: skip

        async def pieces(thing: Any = thing) -> list[str]:
            return [piece async for piece in json_pieces(thing)]

        built = api.run(pieces())
        assert json.loads("".join(built)) == json.loads(json.dumps(thing))
    assert not is_light(long)
    assert max(map(len, api.run(pieces(long)))) < 200_000
    assert BUILT_BYTES_MAX > 200_000


def test_scrapes_that_come_together_are_built_once(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    one = api.stats.topic
    api.topic("t")
    monkeypatch.setattr(api.stats, "topic", lambda topic: [built.append(topic), one(topic)][1])

    async def run() -> None:
        asked = [api._call("GET", "/metrics", b"", {}) for _ in range(50)]
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == len(built) == 1
        await api._call("GET", "/metrics", b"", {})
        assert len(built) == 2

    api.run(run())


def lines_of(*texts: bytes) -> Callable[[], AsyncIterator[bytes]]:
    async def lines() -> AsyncIterator[bytes]:
        for text in texts:
            yield text

    return lines


TEXTS = [b"a_metric 1\n" * 10_000, b"", b"other_metric 2\n" * 9_000]


def test_a_scrape_is_the_same_with_gzip_and_without(api: AdminApi) -> None:
    scrape = api.run(Scrapes(api.broker.clock).take(lines_of(*TEXTS)))
    assert b"".join(scrape.plain()) == b"".join(TEXTS)
    assert gzip.decompress(b"".join(scrape.packed())) == b"".join(TEXTS)
    assert zlib.decompress(b"".join(scrape.packed()), 31) == b"".join(TEXTS)  # one member
    assert scrape.packed_bytes < scrape.size / 20
    assert max(map(len, scrape.plain())) == SCRAPE_PIECE_BYTES
    plain = api.get("/metrics")
    packed = api.get("/metrics", **{"accept-encoding": "gzip, deflate"})
    assert packed.headers["content-encoding"] == "gzip"
    assert b"pulsar_version_info" in gzip.decompress(packed.body)
    assert b"pulsar_version_info" in plain.body
    assert "content-encoding" not in plain.headers


def test_a_slow_scrape_is_given_out_again(api: AdminApi) -> None:
    scrapes = Scrapes(api.clock)

    async def slow() -> AsyncIterator[bytes]:
        api.clock.ms += 3000
        yield b"slow 1\n"

    async def run() -> None:
        first = await scrapes.take(slow)
        api.clock.ms += int(SCRAPE_REUSE_SECONDS_MAX * 1000) - 1
        assert await scrapes.take(slow) is first
        api.clock.ms += 1
        assert await scrapes.take(slow) is not first

    api.run(run())


@pytest.mark.parametrize("path", ["/metrics", "/admin/v2/brokers/health", "/status.html"])
def test_probes_are_answered_without_any_budget(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(gate_of(api), "answers", budgets.SharedBudget(1))
    assert api.get(path).status == 200


def test_clients_that_do_not_read_metrics_keep_nobody_from_them(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        api.topic(f"persistent://public/default/t{number}")
    unread = Unread(api)

    async def run() -> None:
        tasks = [asyncio.create_task(unread.get("/metrics")) for _ in range(300)]
        await asyncio.sleep(1)
        assert unread.statuses == [200] * 300
        assert unread.bytes <= 300 * SCRAPE_PIECE_BYTES
        assert gate_of(api).answers.held == api.broker.output_buffer.bytes == 0
        other = Unread(api)
        other.reads.set()
        await other.get("/metrics")
        assert other.statuses == [200]
        assert other.bytes > 2 * SCRAPE_PIECE_BYTES
        unread.reads.set()
        await asyncio.gather(*tasks)

    api.run(run())


def test_of_scrapes_that_take_too_much_memory_the_oldest_ends(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = api.run(Scrapes(api.broker.clock).take(lines_of(*TEXTS)))
    monkeypatch.setattr(scrapes_module, "SCRAPES_BYTES_MAX", 2 * old.packed_bytes)
    scrapes = Scrapes(api.broker.clock)

    async def run() -> None:
        found = []
        for _ in range(4):
            found.append(await scrapes.take(lines_of(*TEXTS)))
            found[-1].readers += 1
            await asyncio.sleep(1)
        await scrapes.take(lines_of(*TEXTS))
        assert [scrape.is_dropped for scrape in found] == [True, True, False, False]

        closed = []

        class ItsSlot:
            def close(self) -> None:
                closed.append(self)

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)
            last.drop()

        last = found[-1]
        account = budgets.Account(gate_of(api), "somebody")
        state = {budgets.ACCOUNT: account, SLOT: ItsSlot()}
        await ScrapeAnswer(last, "text/plain", takes_gzip=False)({"state": state}, receive, send)
        assert len(closed) == 1
        assert not any(message.get("more_body") is False for message in sent)

    api.run(run())


def test_ranges_of_cursors_count_to_their_client_while_the_answer_is_built(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(subscription_path("t", "s"), {"ledgerId": -1, "entryId": -1})
    api.publish("t", *[b"a"] * 400)
    topic, built = api.topic("t"), list[Any]()
    holes = BitMap(range(1, 400, 2))
    topic.subscriptions["s"].cursor.state.add_entries(
        topic.ledger.first_position().ledger_id, holes
    )
    monkeypatch.setattr("pulsark.admin.spark.views.long_value", built.append)
    monkeypatch.setattr(gate_of(api), "answers", budgets.SharedBudget(20_000))
    assert api.get(f"{NAMESPACE}/t/views/cursors").status == 503
    assert built == []
    assert gate_of(api).answers.held == 0


def test_parts_count_to_their_client_until_they_are_one_answer(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 8)
    path = f"{NAMESPACE}/p/views/topics"
    size = len(api.get(path).body)
    monkeypatch.setattr(gate_of(api), "answers", budgets.SharedBudget(size))
    refused = api.get(path)
    assert refused.status == 503
    assert "in memory" in refused.reason
    assert gate_of(api).answers.held == 0
    monkeypatch.setattr(gate_of(api), "answers", budgets.SharedBudget(4 * size))
    assert api.get(path).status == 200
