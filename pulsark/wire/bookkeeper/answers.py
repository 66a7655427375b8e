"""What a bookie answers: bytes in, events out."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsark.errors import ProtocolError
from pulsark.wire.bookkeeper.requests import Operation, header

if TYPE_CHECKING:
    from collections.abc import Iterator


class Code(IntEnum):
    """How a request went. Other numbers are errors of an unknown kind."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_STATE = 107


class Added(NamedTuple):
    """Consecutive entries that are on the bookie's stable storage."""

    ledger_id: int
    first: int
    last: int


class AddRefused(NamedTuple):
    """One that is not."""

    ledger_id: int
    entry_id: int
    code: int


class ReadAnswer(NamedTuple):
    """The answer to a read; the entry as it is stored if the code is OK."""

    ledger_id: int
    entry_id: int
    """The one that was asked for, so it may be -1."""
    code: int
    stored: bytes


class BatchAnswer(NamedTuple):
    """The answer to a batch read: consecutive entries as they are stored."""

    ledger_id: int
    first: int
    code: int
    request_id: int
    stored: list[bytes]


Answer = Added | AddRefused | ReadAnswer | BatchAnswer

_ANSWER: Final = struct.Struct(">IIiqq")
_BODY_MIN: Final = _ANSWER.size - 4
_REQUEST_ID = struct.Struct(">q")
_SIZE = struct.Struct(">i")
_ADD, _READ, _BATCH = (header(o) for o in (Operation.ADD, Operation.READ, Operation.BATCH_READ))


class AnswerReader:
    """Cuts a stream into answers. It buffers at most one frame of the largest size."""

    def __init__(self, body_bytes_max: int) -> None:
        """A frame with a larger body is refused when its length arrives."""
        self._body_bytes_max = body_bytes_max
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = _ANSWER.size

    def feed(self, data: bytes) -> Iterator[Answer]:
        """The answers that are now complete; ``ProtocolError`` for what is none."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        position, end = 0, len(data)
        self._needed = _ANSWER.size
        # No frame is shorter than the answer to an add, so what is read here is always there.
        while end - position >= _ANSWER.size:
            size, head, code, ledger_id, entry_id = _ANSWER.unpack_from(data, position)
            if head == _ADD and size == _BODY_MIN:
                if code == Code.OK:
                    last, position = self._run_of_adds(data, position, ledger_id, entry_id)
                    yield Added(ledger_id, entry_id, last)
                else:
                    position += _ANSWER.size
                    yield AddRefused(ledger_id, entry_id, code)
                continue
            self._check(size, head)
            after = position + 4 + size
            if after > end:
                self._needed = after - position
                break
            body = data[position + _ANSWER.size : after]
            position = after
            if head == _READ:
                yield ReadAnswer(ledger_id, entry_id, code, body)
            else:
                yield _batch(ledger_id, entry_id, code, body)
        if position < end:
            self._pieces.append(data[position:] if position else data)
        self._held = end - position

    @staticmethod
    def _run_of_adds(data: bytes, position: int, ledger_id: int, entry_id: int) -> tuple[int, int]:
        """The last entry of the answers that follow each other, and where they end."""
        whole = len(data) - (len(data) - position) % _ANSWER.size
        expected = entry_id
        for size, head, code, ledger, entry in _ANSWER.iter_unpack(
            memoryview(data)[position:whole]
        ):
            if (
                entry != expected
                or ledger != ledger_id
                or code
                or head != _ADD
                or size != _BODY_MIN
            ):
                break
            expected += 1
        return expected - 1, position + (expected - entry_id) * _ANSWER.size

    def _check(self, size: int, head: int) -> None:
        if head not in (_READ, _BATCH):
            raise ProtocolError(f"0x{head:08x} is no answer of a bookie")
        if not _BODY_MIN <= size <= self._body_bytes_max:
            raise ProtocolError(
                f"an answer of {size} bytes; {_BODY_MIN} to {self._body_bytes_max} are allowed"
            )


def _batch(ledger_id: int, first: int, code: int, body: bytes) -> BatchAnswer:
    if len(body) < _REQUEST_ID.size:
        raise ProtocolError("the answer to a batch read has no request id")
    (request_id,) = _REQUEST_ID.unpack_from(body)
    stored: list[bytes] = []
    position = _REQUEST_ID.size
    while position < len(body):
        if len(body) - position < _SIZE.size:
            raise ProtocolError("the answer to a batch read ends within a size")
        (size,) = _SIZE.unpack_from(body, position)
        position += _SIZE.size
        if not 0 <= size <= len(body) - position:
            raise ProtocolError(f"an entry of {size} bytes does not fit into the answer")
        stored.append(body[position : position + size])
        position += size
    return BatchAnswer(ledger_id, first, code, request_id, stored)
