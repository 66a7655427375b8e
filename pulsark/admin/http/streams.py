"""Large answers of the admin API, built and sent piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi.responses import StreamingResponse

from pulsark.dispatch.loop.turns import in_turns
from pulsark.limits import HTTP_PIECE_BYTES, LEDGERS_PER_TURN_MAX

ITEMS_PER_TURN = 1000
_separators = (",", ":")


def streamed(pieces: AsyncIterator[str], media_type: str = "application/json") -> StreamingResponse:
    """An answer of many small pieces, which are put together for the socket."""
    return StreamingResponse(_collected(pieces), media_type=media_type)


async def _collected(pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
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


def long_value(thing: Any) -> StreamingResponse:
    """A JSON value with lists in it that may be very long."""
    return streamed(json_pieces(thing))


async def json_pieces(thing: Any) -> AsyncIterator[str]:
    """The pieces of an answer with lists in it that may be very long."""
    if isinstance(thing, dict):
        before = "{"
        for name, field in thing.items():
            yield f"{before}{encoded(name)}:"
            async for piece in json_pieces(field):
                yield piece
            before = ","
        yield "{}" if before == "{" else "}"
    elif isinstance(thing, list) and len(thing) > LEDGERS_PER_TURN_MAX:
        for start in range(0, len(thing), LEDGERS_PER_TURN_MAX):
            part = encoded(thing[start : start + LEDGERS_PER_TURN_MAX])[1:-1]
            yield f"{',' if start else '['}{part}"
            await asyncio.sleep(0)
        yield "]"
    else:
        yield encoded(thing)


def encoded(thing: Any) -> str:
    """JSON without spaces, as all answers are."""
    return json.dumps(thing, ensure_ascii=False, allow_nan=False, separators=_separators)
