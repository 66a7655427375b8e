"""Large answers of the admin API, built and sent piece by piece."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi.responses import Response, StreamingResponse

from pulsark.admin.http.budgets import ACCOUNT, Account
from pulsark.dispatch.loop.request_turns import pause
from pulsark.dispatch.loop.turns import in_turns
from pulsark.limits import HTTP_PIECE_BYTES

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

ITEMS_PER_TURN = 1000
ITEMS_PER_PIECE = 100
WEIGHT_MAX = 2000
"""Values, and texts of 64 characters, that are encoded at once."""
STEP_BYTES = 32 * 1024
BUILT_BYTES_MAX = 4 << 20
"""Of a larger answer the rest is built while the client reads."""
_BODY = "http.response.body"
_separators = (",", ":")


class EncodedList:
    """A long JSON list that is encoded already, in pieces of one item or more without brackets."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces


def streamed(pieces: AsyncIterator[str], media_type: str = "application/json") -> StreamingResponse:
    """An answer of many small pieces, which are put together for the socket."""
    return StreamingResponse(collected(pieces), media_type=media_type)


async def collected(pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """Put small pieces together, and encode them."""
    waiting: list[str] = []
    size = 0
    async for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= HTTP_PIECE_BYTES:
            yield "".join(waiting).encode()
            waiting.clear()
            size = 0
    yield "".join(waiting).encode()


async def json_list(items: Iterable[Any]) -> AsyncIterator[str]:
    """The pieces of a JSON list of small things."""
    before = "["
    async for item in in_turns(items, ITEMS_PER_TURN):
        yield before + encoded(item)
        before = ","
    yield "[]" if before == "[" else "]"


async def json_object(fields: AsyncIterator[tuple[str, Any]]) -> AsyncIterator[str]:
    """The pieces of a JSON object; a value that is an iterator is an object of its own."""
    before = "{"
    async for name, field in fields:
        if isinstance(field, AsyncIterator):
            yield f"{before}{encoded(name)}:"
            async for piece in json_object(field):
                yield piece
        else:
            yield f"{before}{encoded(name)}:{encoded(field)}"
        before = ","
    yield "{}" if before == "{" else "}"


class JsonAnswer(Response):
    """A JSON value that is built and sent in steps.

    It counts among what clients have not read. Up to some size it is built whole, so that nothing
    but its bytes stays in memory while the client reads.
    """

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200) -> None:
        super().__init__(status_code=status)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the value; 503 if its client has to read other answers first."""
        account: Account = scope["state"][ACCOUNT]
        pieces, self._content = collected(json_pieces(self._content)), None
        built: deque[bytes] = deque()
        size, is_whole = 0, True
        async for piece in pieces:
            built.append(piece)
            size += len(piece)
            if size > BUILT_BYTES_MAX:
                is_whole = False
                break
        if scope["method"] == "GET":
            account.expect_answer(size if is_whole else 2 * BUILT_BYTES_MAX)
        length = [(b"content-length", str(size).encode())] if is_whole else []
        headers = [(b"content-type", b"application/json"), *length]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        while built:
            await send({"type": _BODY, "body": built.popleft(), "more_body": True})
        if not is_whole:
            async for piece in pieces:
                await send({"type": _BODY, "body": piece, "more_body": True})
        await send({"type": _BODY, "body": b"", "more_body": False})


def long_value(thing: Any) -> JsonAnswer:
    """A JSON value with lists in it that may be very long."""
    return JsonAnswer(thing)


async def json_pieces(thing: Any) -> AsyncIterator[str]:
    """The pieces of an answer that may be very long, built in steps."""
    size = 0
    for piece in _pieces(thing):
        yield piece
        size += len(piece)
        if size > STEP_BYTES:
            await pause()
            size = 0


def _pieces(thing: Any) -> Iterator[str]:
    if is_light(thing):
        yield encoded(thing)
    elif isinstance(thing, EncodedList):
        before = "["
        for piece in thing.pieces:
            yield f"{before}{piece}"
            before = ","
        yield "[]" if before == "[" else "]"
    elif isinstance(thing, dict):
        before = "{"
        for name, field in thing.items():
            yield f"{before}{encoded(str(name))}:"
            yield from _pieces(field)
            before = ","
        yield "}"
    elif isinstance(thing, list | tuple):
        before = "["
        for start in range(0, len(thing), ITEMS_PER_PIECE):
            some = thing[start : start + ITEMS_PER_PIECE]
            if is_light(some):
                yield f"{before}{encoded(some)[1:-1]}"
                before = ","
                continue
            for item in some:
                yield before
                yield from _pieces(item)
                before = ","
        yield "]"
    else:
        yield encoded(thing)


def is_light(thing: Any) -> bool:
    """Return whether a value is encoded in a fraction of a millisecond."""
    left, nodes = WEIGHT_MAX, [thing]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            left -= 2 * len(node)
            if left < 0:
                return False
            nodes.extend(node.values())
        elif isinstance(node, list | tuple):
            left -= len(node)
            if left < 0:
                return False
            nodes.extend(node)
        elif isinstance(node, str):
            left -= len(node) // 64
        elif isinstance(node, EncodedList):
            return False
    return left >= 0


def encoded(thing: Any) -> str:
    """JSON without spaces, as all answers are."""
    return json.dumps(thing, ensure_ascii=False, allow_nan=False, separators=_separators)
