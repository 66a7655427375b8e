"""The bodies of frames: requests, answers and errors, encoded and decoded.

Every ``decode`` raises ``ProtocolError`` for invalid bytes. It checks a size that the peer chose
before it allocates anything of that size.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import google_crc32c

from pulsark.errors import (
    CorruptEntryError,
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ProtocolError,
    StorageError,
    StorageFullError,
)
from pulsark.storage.bookie.bookie import LedgerTail
from pulsark.storage.bookie.journal_excerpt import JournalExcerpt
from pulsark.storage.remote_bookie.protocol import PROTOCOL_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.runtime import Piece

_LEDGER = struct.Struct("<q")
_RANGE = struct.Struct("<qqqq")
_RELEASE = struct.Struct("<qq")
_TAIL = struct.Struct("<qqq")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<qII")

_CODES: dict[type[StorageError], int] = {
    StorageError: 1,
    LedgerFencedError: 2,
    NoSuchLedgerError: 3,
    NoSuchEntryError: 4,
    EntrySealedError: 5,
    CorruptEntryError: 6,
    StorageFullError: 7,
}
"""Error codes are shared between versions: never reuse one. Unknown errors are sent as 1."""
_ERRORS = {code: error for error, code in _CODES.items()}
_TEXT_BYTES_MAX = 4096
_crc32c = google_crc32c.value


@dataclass(frozen=True, slots=True)
class Hello:
    """A bookie's identity; from a broker, the expected identity. An empty field matches any."""

    bookieId: str = ""
    instanceId: str = ""
    """Hexadecimal digits."""
    storeId: str = ""
    """The identity of the metadata store that knows the bookie's ledgers."""
    bodyBytesMax: int = 0
    """The largest body that the bookie accepts; sent by the bookie."""
    version: int = PROTOCOL_VERSION
    memoryBytes: int = 0
    """Of the memory that the broker offers to share; from the bookie, that it shares."""
    memoryFd: int = -1
    """What the broker's process has it open as."""

    def encode(self) -> bytes:
        """JSON."""
        return json.dumps(asdict(self)).encode()

    def mismatch(self, found: Hello) -> str:
        """Why ``found`` is not the expected bookie; empty if it is."""
        if found.version != self.version:
            return f"the bookie speaks version {found.version}, the broker version {self.version}"
        for name in ("bookieId", "instanceId", "storeId"):
            expected, is_there = getattr(self, name), getattr(found, name)
            if expected and expected != is_there:
                return f"{name} is {is_there}, and {expected} is expected"
        return ""


def decode_hello(body: bytes) -> Hello:
    """The inverse of ``Hello.encode``. Fields of later versions are ignored."""
    try:
        found: Any = json.loads(body)
        hello = Hello(**{name: found[name] for name in asdict(Hello()) if name in found})
    except (ValueError, TypeError, RecursionError) as e:
        raise ProtocolError(f"not a hello: {e}") from e
    texts = (hello.bookieId, hello.instanceId, hello.storeId)
    if not all(isinstance(text, str) for text in texts):
        raise ProtocolError("a hello whose names are not strings")
    numbers = (hello.version, hello.bodyBytesMax, hello.memoryBytes, hello.memoryFd)
    if not all(type(number) is int for number in numbers):
        raise ProtocolError("a hello whose numbers are not integers")
    return hello


def encode_place(place: int) -> bytes:
    """What an add begins with if its payloads lie in shared memory."""
    return _LEDGER.pack(place)


def decode_place(pieces: Sequence[Piece]) -> tuple[int, Sequence[Piece]]:
    """The place, and what follows it."""
    body = b"".join(pieces)
    if len(body) < _LEDGER.size:
        raise ProtocolError("an add without the place of its payloads")
    return _LEDGER.unpack_from(body)[0], (memoryview(body)[_LEDGER.size :],)


def encode_ledger(ledger_id: int) -> bytes:
    """The body of a tail or delete request."""
    return _LEDGER.pack(ledger_id)


def decode_ledger(body: bytes) -> int:
    """The ledger's id, or a mark."""
    (ledger_id,) = _unpack(_LEDGER, body)
    return ledger_id


def encode_release(ledger_id: int, through: int) -> bytes:
    """The body of a release request."""
    return _RELEASE.pack(ledger_id, through)


def decode_release(body: bytes) -> tuple[int, int]:
    """The ledger, and its last entry that is in the table."""
    ledger_id, through = _unpack(_RELEASE, body)
    return ledger_id, through


def encode_range(ledger_id: int, first: int, last: int, max_bytes: int = 0) -> bytes:
    """The body of a read or excerpt request."""
    return _RANGE.pack(ledger_id, first, last, max_bytes)


def decode_range(body: bytes) -> tuple[int, int, int, int]:
    """Ledger, first entry, last entry, most bytes."""
    ledger_id, first, last, max_bytes = _unpack(_RANGE, body)
    return ledger_id, first, last, max_bytes


def encode_tail(tail: LedgerTail) -> bytes:
    """The answer to a tail."""
    return _TAIL.pack(tail.last_confirmed, tail.last_entry_id, tail.confirmed_bytes)


def decode_tail(body: bytes) -> LedgerTail:
    """The inverse of ``encode_tail``."""
    last_confirmed, last_entry_id, confirmed_bytes = _unpack(_TAIL, body)
    return LedgerTail(last_confirmed, last_entry_id, confirmed_bytes)


def encode_entries(entries: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """The answer to a read, in pieces: count, table, payloads."""
    table = [_ENTRY.pack(entry_id, len(payload), _crc32c(payload)) for entry_id, payload in entries]
    return [_COUNT.pack(len(entries)), *table, *[payload for _, payload in entries]]


def decode_entries(body: bytes) -> list[tuple[int, bytes]]:
    """The inverse of ``encode_entries``."""
    if len(body) < _COUNT.size:
        raise ProtocolError("a truncated answer to a read")
    (count,) = _COUNT.unpack_from(body)
    start, position = _COUNT.size, _COUNT.size + count * _ENTRY.size
    if position > len(body):
        raise ProtocolError("a truncated answer to a read")
    entries = []
    for entry_id, size, checksum in _ENTRY.iter_unpack(body[start:position]):
        payload = body[position : position + size]
        if len(payload) != size or _crc32c(payload) != checksum:
            raise ProtocolError(f"entry {entry_id} was damaged in transit")
        entries.append((entry_id, payload))
        position += size
    return entries


def encode_excerpt(excerpt: JournalExcerpt | None) -> bytes:
    """The answer to an excerpt."""
    return json.dumps(None if excerpt is None else excerpt.to_json()).encode()


def decode_excerpt(body: bytes) -> JournalExcerpt | None:
    """The inverse of ``encode_excerpt``."""
    try:
        found = json.loads(body)
        return None if found is None else JournalExcerpt.from_json(found)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise ProtocolError(f"not an excerpt: {e}") from e


def encode_error(error: BaseException) -> bytes:
    """A code and a text."""
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), 1)
    return bytes((code,)) + str(error).encode(errors="replace")[:_TEXT_BYTES_MAX]


def decode_error(body: bytes) -> StorageError:
    """The error to raise; an unknown code is a ``StorageError``."""
    kind = _ERRORS.get(body[0], StorageError) if body else StorageError
    return kind(body[1:].decode(errors="replace") or "the bookie gave no reason")


def _unpack(layout: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != layout.size:
        raise ProtocolError(f"a body of {len(body)} bytes where {layout.size} are expected")
    return layout.unpack(body)
