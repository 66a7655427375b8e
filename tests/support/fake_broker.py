"""A broker's admin API and Flight port over topics in memory, for tests of the data source."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote

from pulsark.dispatch.spark.flight_listener import FlightListener, TopicRange
from pulsark.dispatch.spark.query_claims import QueryClaims
from pulsark.errors import ClientError, ServerError
from pulsark.runtime import OsDisk, SystemClock
from pulsark.schemas.definition import SchemaData
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal import seal
from pulsark.wire.compacted_entry import pack, unpack
from pulsark.wire.entry import message_counts, parse_entry
from pulsark.wire.position import EARLIEST, Position
from pulsark.wire.topic_name import TopicName


@dataclass
class FakePartition:
    """One topic partition: ledgers of entries, and subscriptions with their position."""

    ledgers: dict[int, list[bytes]] = field(default_factory=dict)
    topic_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    subscriptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    trimmed: Position = EARLIEST
    compacted: tuple[int, Position, list[bytes]] | None = None
    """Ledger, horizon, and what the ledger stores."""

    @property
    def last(self) -> Position:
        """The last entry, (-1, -1) if there is none."""
        for ledger_id, entries in sorted(self.ledgers.items(), reverse=True):
            if entries:
                return Position(ledger_id, len(entries) - 1)
        return Position(-1, -1)

    def trim(self, ledger_id: int) -> None:
        """Delete a ledger and those before it."""
        for old in [held for held in self.ledgers if held <= ledger_id]:
            entries = self.ledgers.pop(old)
            if entries:
                self.trimmed = max(self.trimmed, Position(old, len(entries) - 1))

    @property
    def first(self) -> Position:
        """Where a reader from the beginning starts."""
        return Position(min(self.ledgers), 0) if self.ledgers else Position(-1, -1)


class FakeBroker:
    """Topics by full name; a context manager that serves while it is open."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, FakePartition]] = {}
        self.views: dict[str, list[dict[str, Any]]] = {}
        self.requests: list[str] = []
        self.reads = 0
        self.fail_reads = 0
        self.hide_from: Position | None = None
        self._next_ledger = 0
        self.schemas: dict[str, list[SchemaData]] = {}
        self.table = ""
        self.sealed: dict[str, dict[int, list[DataFile]]] = {}
        self.past: dict[str, dict[str, Any]] = {}
        """What ``table/past`` answers, by its query."""
        self.claims = QueryClaims(SystemClock())
        self.progress: dict[str, Any] = {}
        self.ended: dict[tuple[str, str], Position] = {}
        """The last entries of deleted partitions, by name and id."""

    # -- what tests do ---------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 0) -> str:
        """A topic; ``partitions`` 0 for one without any. Returns the full name."""
        full = topic if "://" in topic else f"persistent://public/default/{topic}"
        numbers = range(partitions) if partitions else [-1]
        self.topics[full] = {number: FakePartition() for number in numbers}
        return full

    def delete(self, topic: str, *, is_remembered: bool = True) -> None:
        """Delete a topic; ``is_remembered``: the broker knows where it ended."""
        for number, held in self.topics.pop(topic).items():
            name = topic if number < 0 else f"{topic}-partition-{number}"
            if is_remembered:
                self.ended[name, held.topic_id] = max(held.last, held.trimmed)

    def publish(self, topic: str, entries: list[bytes], partition: int = -1) -> None:
        """Append entries to the open ledger of a partition."""
        held = self.topics[topic][partition].ledgers
        if not held:
            self.roll(topic, partition)
        held[max(held)].extend(entries)

    def roll(self, topic: str, partition: int = -1) -> None:
        """Open another ledger."""
        self._next_ledger += 1
        self.topics[topic][partition].ledgers[self._next_ledger] = []

    def compact(
        self, topic: str, remains: list[tuple[Position, bytes]], partition: int = -1
    ) -> None:
        """From now on this is what compaction left, up to the last entry there is."""
        held = self.topics[topic][partition]
        self._next_ledger += 1
        held.compacted = self._next_ledger, held.last, [pack(*each) for each in remains]

    def seal(self, name: str, ledger_id: int, entries: int, directory: str, **how: Any) -> None:
        """Write more entries of a partition's ledger to files of a table, from where it ended."""
        files = self.sealed.setdefault(name, {}).setdefault(ledger_id, [])
        self.table = directory
        first = files[-1].last_entry_id + 1 if files else 0
        held = self.partition(name).ledgers[ledger_id][first : first + entries]
        partition = TopicName.parse(name).partition
        nonce = uuid.uuid4().hex[:16]
        numbered = enumerate(held, first)
        schemas = self.schemas.get(str(TopicName.parse(name).base).partition("://")[2], [])
        versions = [(number.to_bytes(8, "big"), each) for number, each in enumerate(schemas)]
        files += seal(
            numbered, partition, ledger_id, [directory], OsDisk(), nonce,
            values=ValueSchemas.next(None, versions), **how,
        )  # fmt: skip

    def schema_answer(self, topic: str) -> dict[str, Any]:
        """The answer of the ``schemas`` endpoint, of ``tenant/namespace/topic``."""
        return {
            "getSchemaResponses": [
                {
                    "version": version,
                    "type": schema.type.name,
                    "timestamp": 0,
                    "data": schema.data.decode(),
                    "properties": dict(schema.properties),
                }
                for version, schema in enumerate(self.schemas.get(topic, ()))
            ]
        }

    def table_files(self, topic: str) -> dict[str, Any]:
        """The answer of the ``tableFiles`` endpoint."""
        partitions = [
            {
                "name": name,
                "ledgers": [
                    {
                        "ledgerId": ledger_id,
                        "files": [
                            {
                                "path": file.path,
                                "entries": [file.first_entry_id, file.last_entry_id],
                                "rows": file.rows,
                                "size": file.size,
                            }
                            for file in files
                        ],
                    }
                    for ledger_id, files in ledgers.items()
                ],
            }
            for name, ledgers in self.sealed.items()
            if str(TopicName.parse(name).base) == topic
        ]
        return {"directories": [self.table] if partitions else [], "partitions": partitions}

    def partition(self, name: str) -> FakePartition:
        """A partition by its own name."""
        for topic, partitions in self.topics.items():
            for number, held in partitions.items():
                if name == (topic if number < 0 else f"{topic}-partition-{number}"):
                    return held
        raise KeyError(name)

    # -- serving ---------------------------------------------------------------------------

    def __enter__(self) -> FakeBroker:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._flight = FlightListener(self)
        flight_port = self._run(self._flight.listen(["127.0.0.1"], 0))
        self.flight_url = f"grpc://127.0.0.1:{flight_port}"
        broker = self

        class Handler(_Handler):
            fake = broker

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.admin_url = f"http://127.0.0.1:{self._http.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._run(self._flight.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def topic_range(self, topic: str) -> TopicRange:
        try:
            held = self.partition(topic)
        except KeyError:
            raise ClientError(ServerError.TopicNotFound, f"Topic {topic} does not exist") from None
        return TopicRange(held.topic_id, held.first, held.last)

    async def read_entries(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        self.reads += 1
        if self.fail_reads:
            self.fail_reads -= 1
            raise ClientError(ServerError.ServiceNotReady, "not ready yet")
        found: list[tuple[Position, bytes]] = []
        size = 0
        for ledger_id, entries in sorted(self.partition(topic).ledgers.items()):
            for entry_id, entry in enumerate(entries):
                position = Position(ledger_id, entry_id)
                if not first <= position <= last or (found and size >= max_bytes):
                    continue
                if self.hide_from is not None and position >= self.hide_from:
                    continue
                found.append((position, entry))
                size += len(entry)
        return found

    async def read_compacted(
        self, topic: str, first: Position, last: Position, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        held = self.partition(topic).compacted
        if held is None or held[0] != first.ledger_id:
            raise ClientError(ServerError.NotAllowedError, f"Topic {topic} was compacted again")
        numbers = range(first.entry_id, min(last.entry_id + 1, first.entry_id + 2))
        return [(Position(held[0], number), held[2][number]) for number in numbers]

    def count(self, topic: str, after: str, through: str, limit: int) -> dict[str, Any]:
        """The answer of the ``messageCount`` endpoint, one entry at a time."""
        ledger_id, entry_id, *rest = (int(number) for number in after.split(":"))
        index = rest[0] if rest else -1
        last = Position(*(int(number) for number in through.split(":")[:2]))
        for held_id, entries in sorted(self.partition(topic).ledgers.items()):
            for number, entry in enumerate(entries):
                place = Position(held_id, number)
                if place < (ledger_id, entry_id) or place > last:
                    continue
                skipped = 0
                if place == (ledger_id, entry_id):
                    if index < 0:
                        continue
                    skipped = index + 1
                messages = message_counts(entry)[0]
                if messages - skipped > limit:
                    found = _id(place) | {"batchIndex": skipped + limit - 1}
                    return {"messages": limit, "last": found}
                return {"messages": messages - skipped, "last": _id(place) | {"batchIndex": -1}}
        return {"messages": 0, "last": _id(last) | {"batchIndex": -1}}

    def first_since(self, topic: str, ms: int, *, compacted: bool = False) -> Position:
        """The first entry published at a time or later, or the place behind the last one."""
        held = self.partition(topic)
        for position, entry in map(
            unpack, held.compacted[2] if compacted and held.compacted else ()
        ):
            if parse_entry(entry).publish_time >= ms:
                return position
        for ledger_id, entries in sorted(held.ledgers.items()):
            for number, entry in enumerate(entries):
                if parse_entry(entry).publish_time >= ms:
                    return Position(ledger_id, number)
        return Position(held.last.ledger_id, held.last.entry_id + 1)

    def plan(self, topic: str, after: list[int], *, compacted: bool = False) -> dict[str, Any]:
        """The answer of the ``segments`` endpoint."""
        oldest = itertools.chain(after, itertools.repeat(0))
        return {
            "topic": topic,
            "topicId": "base",
            "flightUrl": self.flight_url,
            "partitions": [
                {
                    "partition": number,
                    "name": topic if number < 0 else f"{topic}-partition-{number}",
                    "topicId": held.topic_id,
                    "first": _id(held.first),
                    "last": _id(held.last),
                    "trimmed": _id(held.trimmed),
                    "ledgers": [
                        {
                            "ledgerId": ledger_id,
                            "entries": len(entries),
                            "size": sum(map(len, entries)),
                            "open": ledger_id == max(held.ledgers),
                        }
                        for ledger_id, entries in sorted(held.ledgers.items())
                        if ledger_id >= first
                    ],
                    **(_compacted(*held.compacted) if compacted and held.compacted else {}),
                }
                for (number, held), first in zip(self.topics[topic].items(), oldest, strict=False)
            ],
        }


class _Handler(BaseHTTPRequestHandler):
    fake: FakeBroker
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self._serve(None)

    def do_PUT(self) -> None:
        size = int(self.headers["Content-Length"] or 0)
        self._serve(json.loads(self.rfile.read(size)) if size else None)

    do_POST = do_PUT
    do_DELETE = do_GET

    def _serve(self, body: Any) -> None:
        path, _, query = unquote(self.path).partition("?")
        self.fake.requests.append(f"{self.command} {unquote(self.path)}")
        fake = self.fake
        parts = path.removeprefix("/admin/v2/").removeprefix("persistent/").split("/")
        try:
            if parts[0] == "schemas":
                status, answer = 200, self.fake.schema_answer("/".join(parts[1:4]))
            elif parts[0] == "spark-plans":
                here = {name: ids for name, ids in body["topics"].items() if name in fake.topics}
                status = 200
                answer = {
                    "topics": [
                        fake.plan(name, ids or [0], compacted=body["compacted"])
                        for name, ids in here.items()
                    ]
                }
            elif parts[0] == "spark-queries":
                status, answer = self._query(parts[1], parts[2:], body)
            else:
                status, answer = self._route(parts, body, dict(parse_qsl(query)))
        except KeyError as error:
            status, answer = 404, {"reason": f"{error} not found"}
        data = json.dumps(answer).encode() if answer is not None else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _query(self, name: str, path: list[str], body: Any) -> tuple[int, Any]:
        claims = self.fake.claims
        if self.command == "PUT" and not path:
            held = claims.claim(name, body["client"], body["subscription"], body["topics"])
            return (204, None) if held is None else (409, {"reason": f"held by {held[0].client}"})
        if self.command == "DELETE":
            return (204, None) if claims.release(name) else (404, {"reason": "unknown query"})
        query = claims.get(name)
        if query is None:
            return 404, {"reason": "nothing is known of this query"}
        if path == ["progress"]:
            self.fake.progress[name] = body
            return 204, None
        places = {
            partition: Position(place["ledgerId"], place["entryId"])
            for partition, place in body["positions"].items()
        }
        if not path:
            claims.renew(name, places)
            return 204, None
        assert query.subscription is not None
        return 200, {"missing": list(self._missing(query.subscription, path[0], places))}

    def _missing(self, subscription: str, what: str, places: dict[str, Position]) -> Iterator[str]:
        """Create or move a subscription; the partitions of which that cannot be done."""
        for name, place in places.items():
            try:
                held = self.fake.partition(name).subscriptions
                if what == "acknowledge":
                    held[subscription] = max(held[subscription], place)
                else:
                    held.setdefault(subscription, Position(place.ledger_id, place.entry_id - 1))
            except KeyError:
                yield name

    def _route(self, parts: list[str], body: Any, query: dict[str, str]) -> tuple[int, Any]:
        fake = self.fake
        if len(parts) < 3 or parts[2:] == ["partitioned"]:
            prefix = f"persistent://{parts[0]}/{parts[1]}/"
            here = {name: held for name, held in fake.topics.items() if name.startswith(prefix)}
            if len(parts) == 3:
                return 200, [name for name, held in here.items() if -1 not in held]
            return 200, [
                name if number < 0 else f"{name}-partition-{number}"
                for name, held in here.items()
                for number in held
            ]
        name = f"persistent://{parts[0]}/{parts[1]}/{parts[2]}"
        if parts[3] == "segments":
            after = [int(n) for n in query.get("after", "0").split(",")]
            return 200, fake.plan(name, after, compacted="compacted" in query)
        if parts[3] == "deleted":
            return 200, {"last": _id(fake.ended[name, parts[4]])}
        if parts[3] == "views":
            return 200, [row for row in fake.views[parts[4]] if row["topic"] == name]
        if parts[3] == "tableFiles":
            return 200, fake.table_files(name)
        if parts[3:] == ["table", "past"]:
            ((how, wanted),) = query.items() if fake.topics[name] else ()
            found = fake.past.get(f"{how}={wanted}")
            return (200, found) if found else (412, {"reason": f"there is no {how} {wanted}"})
        if parts[3] == "messageid":
            return 200, _id(fake.first_since(name, int(parts[4]), compacted="compacted" in query))
        if parts[3] == "messageCount":
            limit = int(query["limit"])
            return 200, fake.count(name, query["after"], query["through"], limit)
        raise KeyError(name)


def _compacted(ledger_id: int, horizon: Position, stored: list[bytes]) -> dict[str, Any]:
    part = {"ledgerId": ledger_id, "entries": len(stored), "size": sum(map(len, stored))}
    return {"compacted": part | {"horizon": _id(horizon)}}


def _id(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}
