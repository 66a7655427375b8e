"""Entries of a topic over Arrow Flight, as they were sent.

A ticket is JSON, ``{"topic": full partition name, "topicId": id, "first": [ledger, entry],
"last": [ledger, entry]}``, both ends inclusive. The answer is a stream of record batches with
the columns of ``ENTRY_SCHEMA``, ascending, each about 4 MiB of entries; ``entry`` holds the raw
bytes from the 0x0e01 magic on. With ``"compacted": true`` both ends are in one of the topic's
compacted ledgers, by its own ids, and ``entry`` is what it stores. A stream ends where nothing
durable is left in the range, so a client that expects more asks again from there.

Importing this module is expensive; ``flight_listener`` does it when the first client comes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from pulsark.dispatch.spark.flight_login import NAME, FlightGate, FlightLogins
from pulsark.dispatch.spark.flight_rights import FlightRights
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.limits import FLIGHT_CHUNKS_BYTES_MAX, FLIGHT_READS_MAX
from pulsark.security.decisions import owner_of
from pulsark.wire.flight_refusals import INVALID, NOT_FOUND
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from concurrent.futures import Future

    from pulsark.dispatch.loop.request_turns import RequestTurns
    from pulsark.dispatch.spark.flight_listener import FlightSource
    from pulsark.dispatch.spark.flight_relay import Relays
    from pulsark.security.audit.audit import Audit
    from pulsark.security.authorization import AuthorizationProvider
    from pulsark.security.logins import Logins
    from pulsark.security.principal import Principal

T = TypeVar("T")

log = logging.getLogger(__name__)

ENTRY_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("entry", pa.binary(), nullable=False),
    ]
)
CHUNK_BYTES = 4 << 20
_LEAST_BYTES = 64 << 10
MAX_TICKET_BYTES = 16 * 1024
_POLL_SECONDS = 0.5
"""Time between two looks whether a waiting call is still wanted, while few calls are under way."""
_MAX_ID = 2**63 - 1
_UNIX_PATH_BYTES_MAX = 103
"""macOS has the lowest limit: 104 with the zero at the end."""
_OWNER = "flight"
"""Whose the steps of calls are that nobody has logged in for."""
_NAME_BYTES = 10
"""Longest name of a socket in the directory: the server's, or the number of a connection."""


class EntryTicket(NamedTuple):
    """A range of one topic partition, both ends inclusive; ``topic_id`` "" means any."""

    topic: str
    topic_id: str
    first: Position
    last: Position
    compacted: bool = False

    @classmethod
    def parse(cls, data: bytes) -> EntryTicket:
        """Read a ticket; a ``FlightServerError`` says what is wrong with it."""
        if len(data) > MAX_TICKET_BYTES:
            raise _invalid(
                f"ticket: {len(data)} bytes are too large, at most {MAX_TICKET_BYTES} are allowed"
            )
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _invalid(f"ticket: not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise _invalid("ticket: not a JSON object")
        topic, topic_id = fields.get("topic"), fields.get("topicId", "")
        if not isinstance(topic, str) or not topic:
            raise _invalid("ticket: 'topic' must be the name of a topic partition")
        if not isinstance(topic_id, str):
            raise _invalid("ticket: 'topicId' must be a string")
        compacted = fields.get("compacted", False)
        if not isinstance(compacted, bool):
            raise _invalid("ticket: 'compacted' must be true or false")
        first, last = _position(fields, "first"), _position(fields, "last")
        return cls(topic, topic_id, first, last, compacted)

    def encode(self) -> bytes:
        """The JSON text of the ticket."""
        return json.dumps(
            {
                "topic": self.topic,
                "topicId": self.topic_id,
                "first": list(self.first),
                "last": list(self.last),
            }
        ).encode()


def _invalid(text: str) -> fl.FlightServerError:
    return fl.FlightServerError(text, INVALID)


def _not_found(text: str) -> fl.FlightServerError:
    return fl.FlightServerError(text, NOT_FOUND)


@contextmanager
def _without_stack() -> Iterator[None]:
    """Let no error but Flight's own leave: others would show their stack to the client."""
    try:
        yield
    except fl.FlightError:
        raise
    except Exception as error:
        log.error("flight: a call failed with an unexpected error", exc_info=error)
        raise fl.FlightInternalError("the broker failed; its log says why") from None


def _position(fields: dict[str, Any], key: str) -> Position:
    value = fields.get(key)
    if (
        not isinstance(value, list)
        or len(value) != 2
        or any(type(part) is not int or not -1 <= part <= _MAX_ID for part in value)
    ):
        raise _invalid(f"ticket: '{key}' must be [ledgerId, entryId]")
    return Position(value[0], value[1])


class EntryFlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves on a Unix socket of its own as soon as it is constructed.

    The socket is in a directory that only this user can enter, so other users of the machine
    reach the server through the public port and its limits, or not at all.

    gRPC's threads run ``do_get``; each asks the event loop for a chunk, one ahead of the chunk
    that is being sent, so a slow client holds two chunks and no more.
    """

    def __init__(
        self,
        source: FlightSource,
        loop: asyncio.AbstractEventLoop,
        logins: Logins | None = None,
        authorization: AuthorizationProvider | None = None,
        relays: Relays | None = None,
        audit: Audit | None = None,
        turns: RequestTurns | None = None,
    ) -> None:
        """With ``logins`` each call has to bring credentials, and ``authorization`` decides.

        What calls do on the event loop shares the ``turns`` of requests.

        ``relays`` knows the clients behind connections, by the names of these.
        """
        directory = tempfile.mkdtemp(prefix="pulsark-flight-")
        self.address = os.path.join(directory, "socket")
        try:
            if len(os.fsencode(directory)) + 1 + _NAME_BYTES > _UNIX_PATH_BYTES_MAX:
                raise OSError(
                    f"TMPDIR: {self.address} is too long for a Unix socket, at most "
                    f"{_UNIX_PATH_BYTES_MAX} bytes are allowed; name a shorter directory"
                )
            super().__init__(
                fl.Location.for_grpc_unix(self.address),
                middleware={NAME: FlightGate()},
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        # Arrow's own allocator keeps what each of gRPC's threads once had for batches.
        pa.set_memory_pool(pa.system_memory_pool())
        self.closing = threading.Event()
        self._source = source
        self._loop = loop
        self._turns = turns
        self._reads = asyncio.Semaphore(FLIGHT_READS_MAX)
        self._building = threading.Lock()
        """Held by the one thread that builds a batch: many would leave the event loop no time."""
        self._relays = relays
        self._rights = FlightRights(logins, authorization, audit)
        self._callers = None
        if logins is not None and relays is not None:
            self._callers = FlightLogins(logins, loop, relays)

    def stop(self) -> None:
        """Remove the socket and end the server. Blocks until the last stream has ended."""
        shutil.rmtree(os.path.dirname(self.address), ignore_errors=True)
        self.shutdown()

    def do_get(self, context: Any, ticket: Any) -> Any:
        """The entries of a ticket's range."""
        with _without_stack():
            return self._stream(context, ticket)

    def _stream(self, context: Any, ticket: Any) -> Any:
        caller = self._caller(context)
        wanted = EntryTicket.parse(ticket.ticket)
        self._wait(context, self._submit(caller, self._rights.check(caller, wanted.topic)))
        self._check_identity(context, caller, wanted)
        first = self._submit(caller, self._read(caller, wanted, wanted.first))
        # Fetched here, so that a failure is the call's and not in the middle of a stream.
        entries = self._wait(context, first)
        return fl.GeneratorStream(ENTRY_SCHEMA, self._batches(context, caller, wanted, entries))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """One endpoint with everything that the topic partition ``path[0]`` holds now."""
        with _without_stack():
            return self._info(context, descriptor)

    def _info(self, context: Any, descriptor: Any) -> Any:
        caller = self._caller(context)
        if descriptor.descriptor_type != fl.DescriptorType.PATH or len(descriptor.path) != 1:
            raise _invalid("descriptor: the path must be [topic partition]")
        topic = descriptor.path[0].decode("utf-8", "replace")
        self._wait(context, self._submit(caller, self._rights.check(caller, topic)))
        held = self._wait(context, self._submit(caller, self._source.topic_range(topic)))
        ticket = EntryTicket(topic, held.topic_id, held.first, held.last)
        endpoint = fl.FlightEndpoint(fl.Ticket(ticket.encode()), [])
        return fl.FlightInfo(ENTRY_SCHEMA, descriptor, [endpoint], -1, -1)

    def _caller(self, context: Any) -> Principal | None:
        """Who calls; before anything is told of a topic, also whether there is one."""
        return None if self._callers is None else self._callers.of_call(context)

    def _check_identity(self, context: Any, caller: Principal | None, wanted: EntryTicket) -> None:
        held = self._wait(context, self._submit(caller, self._source.topic_range(wanted.topic)))
        if wanted.topic_id and wanted.topic_id != held.topic_id:
            raise _not_found(
                f"topic {wanted.topic} was deleted and created again: "
                f"its id is {held.topic_id}, the ticket wants {wanted.topic_id}"
            )

    def _batches(
        self,
        context: Any,
        caller: Principal | None,
        wanted: EntryTicket,
        entries: list[tuple[Position, bytes]],
    ) -> Iterator[Any]:
        with _without_stack():
            while entries:
                ledger_id, entry_id = entries[-1][0]
                following = None
                if entries[-1][0] < wanted.last:
                    position = Position(ledger_id, entry_id + 1)
                    following = self._submit(caller, self._read(caller, wanted, position))
                with self._building:
                    batch = entry_batch(entries)
                yield batch
                entries = self._wait(context, following) if following is not None else []

    async def _read(
        self, caller: Principal | None, wanted: EntryTicket, first: Position
    ) -> list[tuple[Position, bytes]]:
        await self._rights.check(caller, wanted.topic)
        source = self._source
        read = source.read_compacted if wanted.compacted else source.read_entries
        async with self._reads:
            return await read(wanted.topic, first, wanted.last, self._chunk_bytes)

    @property
    def _chunk_bytes(self) -> int:
        """A whole chunk, unless too many calls are under way to keep two of each."""
        return min(CHUNK_BYTES, max(FLIGHT_CHUNKS_BYTES_MAX // (2 * self._calls), _LEAST_BYTES))

    @property
    def _calls(self) -> int:
        return 1 if self._relays is None else max(self._relays.calls, 1)

    def _submit(self, caller: Principal | None, call: Coroutine[Any, Any, T]) -> Future[T]:
        if self.closing.is_set():
            call.close()
            raise fl.FlightUnavailableError("the broker is shutting down")
        if self._turns is not None:
            owner = _OWNER if caller is None else owner_of(caller)
            call = self._turns.run(call, lambda: owner)
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def _wait(self, context: Any, future: Future[T]) -> T:
        while True:
            try:
                return future.result(_POLL_SECONDS * max(self._calls / FLIGHT_READS_MAX, 1))
            except TimeoutError as error:
                if future.done():
                    raise fl.FlightTimedOutError(str(error)) from error
                if self.closing.is_set() or context.is_cancelled():
                    future.cancel()
                    raise fl.FlightUnavailableError("the broker is shutting down") from error
            except ClientError as error:
                if error.code in (ServerError.TopicNotFound, ServerError.InvalidTopicName):
                    raise _not_found(str(error)) from error
                if error.code is ServerError.AuthorizationError:
                    raise fl.FlightUnauthorizedError(str(error)) from error
                if error.code is ServerError.NotAllowedError:
                    raise _invalid(str(error)) from error
                raise fl.FlightUnavailableError(str(error)) from error
            except PulsarkError as error:
                raise fl.FlightInternalError(str(error)) from error


def entry_batch(entries: list[tuple[Position, bytes]]) -> pa.RecordBatch:
    """Entries as one record batch of ``ENTRY_SCHEMA``."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([position.ledger_id for position, _ in entries], pa.int64()),
            pa.array([position.entry_id for position, _ in entries], pa.int64()),
            pa.array([entry for _, entry in entries], pa.binary()),
        ],
        schema=ENTRY_SCHEMA,
    )
