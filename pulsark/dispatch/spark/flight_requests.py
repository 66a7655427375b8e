"""What a Flight client may send: small requests, as they are, and not too many at a time. Pure.

gRPC takes a request into memory before anybody looks at it, of any size, and unpacks it if it is
compressed. Each call has a thread of its own, and very many threads of Python stop each other. So
the frames of HTTP/2 are followed on their way: of each only the head, and of a request its first
byte, which says whether it is compressed.
"""

from __future__ import annotations

from pulsark.limits import FLIGHT_CALLS_MAX, FLIGHT_REQUEST_BYTES_MAX, FLIGHT_REQUESTS_BYTES_MAX

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every client sends first."""

_HEAD_BYTES = 9
_DATA, _HEADERS, _RESET = 0, 1, 3
_END, _PADDED = 0x1, 0x8
_STREAM_BYTES = 100
"""What a stream counts beside its data, for it is kept here."""


class RequestError(OSError):
    """The client is served no more."""


class FlightRequests:
    """The requests of one client."""

    def __init__(self) -> None:
        self._skip = len(PREFACE)
        self._head = bytearray()
        self._sizes: dict[int, int] = {}
        """The sizes of unfinished requests, by stream."""
        self._total = 0
        self._is_first = False
        """Whether the next byte is the first one of a request."""
        self._calls: set[int] = set()
        """Streams whose call the server has not ended."""
        self._answer_skip = 0
        self._answer_head = b""

    @property
    def calls(self) -> int:
        """How many are under way."""
        return len(self._calls)

    def take(self, data: memoryview) -> None:
        """The client's next bytes. Raises ``RequestError``."""
        at, end = 0, len(data)
        while at < end:
            if self._skip:
                if self._is_first:
                    self._is_first = False
                    if data[at]:
                        raise RequestError("a request is compressed")
                step = min(self._skip, end - at)
                self._skip -= step
            else:
                step = min(_HEAD_BYTES - len(self._head), end - at)
                self._head += data[at : at + step]
                if len(self._head) == _HEAD_BYTES:
                    self._frame(bytes(self._head))
                    self._head.clear()
            at += step

    def answered(self, data: memoryview) -> None:
        """The server's next bytes."""
        at, end = self._answer_skip, len(data)
        while at < end:
            head = self._answer_head + bytes(data[at : at + _HEAD_BYTES - len(self._answer_head)])
            at += len(head) - len(self._answer_head)
            if len(head) < _HEAD_BYTES:
                self._answer_head = head
                break
            self._answer_head = b""
            size, kind, flags, stream = _parsed(head)
            if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END):
                self._calls.discard(stream)
            at += size
        self._answer_skip = max(at - end, 0)

    def _frame(self, head: bytes) -> None:
        size, kind, flags, stream = _parsed(head)
        self._skip = size
        if kind == _HEADERS:
            self._calls.add(stream)
            if len(self._calls) > FLIGHT_CALLS_MAX:
                raise RequestError(f"more than {FLIGHT_CALLS_MAX} calls are under way")
        elif kind == _RESET:
            self._calls.discard(stream)
        if kind == _DATA:
            if flags & _PADDED:
                raise RequestError("a request is padded")
            self._is_first = size > 0 and stream not in self._sizes
            if size:
                self._add(stream, size)
        if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END):
            ended = self._sizes.pop(stream, None)
            if ended is not None:
                self._total -= ended + _STREAM_BYTES

    def _add(self, stream: int, size: int) -> None:
        if stream not in self._sizes:
            self._sizes[stream] = 0
            self._total += _STREAM_BYTES
        self._sizes[stream] += size
        self._total += size
        if self._sizes[stream] > FLIGHT_REQUEST_BYTES_MAX:
            raise RequestError(f"a request is larger than {FLIGHT_REQUEST_BYTES_MAX} bytes")
        if self._total > FLIGHT_REQUESTS_BYTES_MAX:
            raise RequestError(f"its requests are larger than {FLIGHT_REQUESTS_BYTES_MAX} bytes")


def _parsed(head: bytes) -> tuple[int, int, int, int]:
    """Size, kind, flags and stream of a frame."""
    stream = int.from_bytes(head[5:], "big") & 0x7FFF_FFFF
    return int.from_bytes(head[:3], "big"), head[3], head[4], stream
