"""The parts of a request: names in the path, flags in the query, JSON in the body.

Paths are routed undecoded, because a name may contain an encoded slash. Each slot has its own
rule of decoding, as existing clients need it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, unquote_plus

from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from pulsark.admin.http.budgets import account_of
from pulsark.admin.http.errors import fail
from pulsark.admin.http.streams import JsonAnswer, is_light
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.stats.stats import Stats
from pulsark.limits import (
    HTTP_BODY_BYTES_MAX,
    JSON_DEPTH_MAX,
    JSON_ON_THE_LOOP_BYTES_MAX,
    JSON_TEXT_CHARACTERS_MAX,
    JSON_VALUES_MAX,
    TOPIC_PROPERTIES_BYTES_MAX,
    TOPIC_PROPERTIES_MAX,
)
from pulsark.wire.position import EARLIEST, LATEST, Position
from pulsark.wire.topic_name import TopicName, check_name_part

if TYPE_CHECKING:
    from collections.abc import Iterator

INT64_MAX = 2**63 - 1
CERTIFICATE = "certificate"
"""Where a request's state has the client certificate of its connection, in DER, if verified."""
TLS_PEER = "tls"
"""Where it has what an audit notes of a connection over TLS."""
TRIAL = "trial"
SLOT = "slot"
"""Where it has the trial of its connection, if its address was on trial."""


# -- what handlers ask for ---------------------------------------------------------------------


# FastAPI runs what is not a coroutine function in a thread, and requests would overtake each other.


async def _broker(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


async def _stats(request: Request) -> Stats:
    stats: Stats = request.app.state.stats
    return stats


async def _any_topic(request: Request) -> TopicName:
    path = request.path_params
    return topic_name(path["domain"], path["tenant"], path["namespace"], path["topic"])


async def _topic(request: Request) -> TopicName:
    name = await _any_topic(request)
    if not name.is_persistent:
        raise fail(405, "This is not possible on a non-persistent topic, which stores nothing")
    return name


async def _namespace(request: Request) -> str:
    return namespace_name(request.path_params["tenant"], request.path_params["namespace"])


async def _subscription(request: Request) -> str:
    return subscription_name(request.path_params["subscription"])


BrokerOf = Annotated[Broker, Depends(_broker)]
StatsOf = Annotated[Stats, Depends(_stats)]
TopicOf = Annotated[TopicName, Depends(_topic)]
"""A persistent topic; 405 for others."""
AnyTopicOf = Annotated[TopicName, Depends(_any_topic)]
NamespaceOf = Annotated[str, Depends(_namespace)]
SubscriptionOf = Annotated[str, Depends(_subscription)]


# -- answers -----------------------------------------------------------------------------------


def done() -> Response:
    """204: it is done, and there is nothing to say."""
    return Response(status_code=204)


def empty() -> Response:
    """200 without a body: the value is not set."""
    return Response(status_code=200)


def value(content: Any, status: int = 200) -> Response:
    """A JSON value, which is built in steps if there is a lot of it."""
    return JSONResponse(content, status) if is_light(content) else JsonAnswer(content, status)


def text(content: str) -> Response:
    """Bare text, which Pulsar labels as JSON."""
    return Response(content, media_type="application/json")


# -- the path ----------------------------------------------------------------------------------


def unquoted(segment: str) -> str:
    """A segment that may be any text: percent-decoded once."""
    return _decoded(unquote, segment)


def name_part(kind: str, segment: str) -> str:
    """The name of a tenant, namespace or cluster from its segment."""
    return check_name_part(kind, _decoded(unquote, segment))


def namespace_name(tenant: str, namespace: str) -> str:
    """``tenant/namespace`` from two segments."""
    return f"{name_part('tenant', tenant)}/{name_part('namespace', namespace)}"


def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """A topic's name: its own segment is decoded once, form style (``+`` is a space)."""
    local = _decoded(unquote_plus, topic)
    if "/" in local:
        raise fail(412, "A topic's own name cannot contain a slash")
    return TopicName.parse(f"{domain}://{namespace_name(tenant, namespace)}/{local}")


def subscription_name(segment: str) -> str:
    """A subscription's name. Pulsar's clients encode it twice, so it is decoded twice.

    A name that was encoded only once arrives as well if it has no ``%`` and no ``+``. The others
    cannot be told apart, and a wrong guess might delete another subscription.
    """
    return _decoded(unquote_plus, _decoded(unquote, segment))


def _decoded(decode: Any, segment: str) -> str:
    try:
        decoded: str = decode(segment, errors="strict")
    except UnicodeDecodeError:
        raise fail(412, "The path is not UTF-8") from None
    return decoded


def number(segment: str, *, low: int = 0, high: int = INT64_MAX) -> int:
    """An integer in the path; 404 if it is none, as for any path that does not exist."""
    digits = segment.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise fail(404, f"{segment[:40]} is not a number")
    if not low <= int(segment) <= high:
        raise fail(404, f"{segment[:40]} is out of range")
    return int(segment)


# -- the query -----------------------------------------------------------------------------------


def flag(request: Request, name: str, default: bool = False) -> bool:
    """``true`` in any case; anything else is false."""
    given = request.query_params.get(name)
    return default if given is None else given.lower() == "true"


# -- the body ------------------------------------------------------------------------------------
#
# One rule for all bodies, which is that of Pulsar's JSON: a number or a flag may come as a text,
# and a text as a number or a flag.

_BODY = "read-body"
_BEFORE_VALUES = (b",", b":", b"[", b"{")
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[,:\[{]', re.DOTALL)
"""Texts, which hide what is in them, and what stands before a value."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")


async def body_bytes(request: Request) -> bytes:
    """The whole body; 413 if it is too large. It may be asked for again."""
    known: bytes | None = getattr(request.state, _BODY, None)
    if known is not None:
        return known
    size = 0
    pieces = []
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > HTTP_BODY_BYTES_MAX:
                raise fail(413, f"The body is larger than {HTTP_BODY_BYTES_MAX} bytes")
            account_of(request).hold_body(len(piece))
            pieces.append(piece)
    except ClientDisconnect:  # nobody hears this; what is not caught would be taken for a defect
        raise fail(400, "The body ends early") from None
    content = b"".join(pieces)
    setattr(request.state, _BODY, content)
    return content


async def bare_text(request: Request) -> str | None:
    """A body that is a text, in quotes or without; ``None`` if there is none. 400, 413 or 415."""
    content = await _json_bytes(request)
    if content.startswith(b'"'):
        found = await json_body(request)
        return found if isinstance(found, str) else None
    return content.decode(errors="replace") or None


async def _json_bytes(request: Request) -> bytes:
    """The body, which says that it is JSON, without blanks around it."""
    content = (await body_bytes(request)).strip()
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content and not media:
        raise fail(400, "The body has no Content-Type")
    if content and media != "application/json" and not media.endswith("+json"):
        raise fail(415, f"Content-Type {media[:80]} is not supported")
    return content


async def json_body(request: Request) -> Any:
    """The body's JSON; ``None`` if there is no body, or it is ``null``. 400, 413 or 415."""
    content = await _json_bytes(request)
    if not content:
        return None
    try:
        if len(content) <= JSON_ON_THE_LOOP_BYTES_MAX:
            return _parsed(content)
        broker: Broker = request.app.state.broker
        return await broker.large_jobs.run(lambda: _parsed(content))
    except TooManyValuesError:
        raise fail(413, f"The body has more than {JSON_VALUES_MAX} values") from None
    except (ValueError, RecursionError):
        raise fail(400, "The body is not valid JSON") from None


def json_text(text: str) -> Any:
    """Return the JSON in a text of a body; ``ValueError`` or ``RecursionError``.

    A body that is a list of many texts is parsed one by one: none of them holds the interpreter.
    """
    if len(text) > JSON_TEXT_CHARACTERS_MAX:
        raise ValueError(f"a text has more than {JSON_TEXT_CHARACTERS_MAX} characters")
    return _strictly_parsed(text)


class TooManyValuesError(Exception):
    """The parser would hold the interpreter for too long."""


def _parsed(content: bytes) -> Any:
    if len(content) > JSON_ON_THE_LOOP_BYTES_MAX:
        _count_values(content)
    return _strictly_parsed(content)


def _strictly_parsed(content: str | bytes) -> Any:
    parsed = json.loads(content, parse_constant=_no_constant, parse_float=_finite)
    _check(parsed)
    return parsed


def _count_values(content: bytes) -> None:
    """Raise ``TooManyValuesError`` before anything is made of too many values.

    Commas, colons and brackets within texts do not count. The fast count includes them, so the
    exact one follows only where that finds too many.
    """
    if sum(map(content.count, _BEFORE_VALUES)) <= JSON_VALUES_MAX:
        return
    found = 0
    for token in _TOKENS.finditer(content):
        if token[0] in _BEFORE_VALUES:
            found += 1
            if found > JSON_VALUES_MAX:
                raise TooManyValuesError


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large")
    return number


def _check(parsed: Any) -> None:
    """Refuse what is nested too deep and text that is no Unicode."""
    level: list[Any] = [parsed]
    for _ in range(JSON_DEPTH_MAX):
        if not level:
            return
        level = [child for node in level for child in _children(node)]
    if level:
        raise ValueError("nested too deep")


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, str):
        node.encode()
    elif isinstance(node, dict):
        yield from node.keys()
        yield from node.values()
    elif isinstance(node, list):
        yield from node


async def json_object(request: Request) -> dict[str, Any]:
    """The body's JSON object; empty if there is no body."""
    found = await json_body(request)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise fail(400, "A JSON object is expected")
    return found


def strings(found: Any, what: str) -> list[str]:
    """A JSON list of texts; 400 otherwise."""
    if found is None:
        return []
    if not isinstance(found, list) or not all(map(_is_scalar, found)):
        raise fail(400, f"{what} is a list of texts")
    return list(map(_as_text, found))


def string_map(found: Any, what: str, most: int) -> dict[str, str]:
    """A JSON object of texts with at most ``most`` members; 400 or 412 otherwise."""
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(map(_is_scalar, found.values())):
        raise fail(400, f"{what} is an object of texts")
    if len(found) > most:
        raise fail(412, f"At most {most} {what} are allowed")
    return {key: _as_text(item) for key, item in found.items()}


def property_map(found: Any, before: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return ``before`` with the properties of a JSON object of texts added.

    Raise 400 if it is no such object, and 412 if a topic or namespace may not have as many
    properties, or as many bytes of them.
    """
    kept = before or {}
    merged = {**kept, **string_map(found, "properties", TOPIC_PROPERTIES_MAX)}
    if len(merged) > max(TOPIC_PROPERTIES_MAX, len(kept)):
        raise fail(412, f"At most {TOPIC_PROPERTIES_MAX} properties are allowed")
    size = _utf8_bytes(merged)
    if size > max(TOPIC_PROPERTIES_BYTES_MAX, _utf8_bytes(kept)):
        raise fail(
            412,
            f"properties would have {size} bytes, and may have {TOPIC_PROPERTIES_BYTES_MAX}; "
            "make them shorter, or remove some",
        )
    return merged


def _utf8_bytes(properties: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for pair in properties.items() for text in pair)


def integer(found: Any, what: str, default: int | None = None) -> int:
    """A JSON integer of 64 bits; 400 otherwise."""
    if found is None and default is not None:
        return default
    whole = int(found) if isinstance(found, str) and _INTEGER.fullmatch(found) else found
    if isinstance(whole, bool) or not isinstance(whole, int) or abs(whole) > INT64_MAX:
        raise fail(400, f"{what} is an integer")
    return whole


def number_of(found: Any, what: str) -> float:
    """A JSON number from 0 on; 400 otherwise."""
    given = found
    if isinstance(found, str) and _DECIMAL.fullmatch(found):
        given = float(found)
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not 0 <= given < float("inf")
    ):
        raise fail(400, f"{what} is a number from 0")
    return float(given)


def boolean(found: Any, what: str) -> bool:
    """A JSON ``true`` or ``false``; 400 otherwise."""
    if found in ("true", "false"):
        return bool(found == "true")
    if not isinstance(found, bool):
        raise fail(400, f"{what} is true or false")
    return found


def _is_scalar(found: Any) -> bool:
    return isinstance(found, str | int | float)


def _as_text(found: str | int | float) -> str:
    return found if isinstance(found, str) else json.dumps(found)


def position(found: Any) -> Position:
    """A message id as a position: -1/-1 is earliest, the largest numbers are latest."""
    if not isinstance(found, dict):
        raise fail(400, "A message id has ledgerId and entryId")
    ledger_id = integer(found.get("ledgerId"), "ledgerId")
    entry_id = integer(found.get("entryId"), "entryId", -1)
    if ledger_id == INT64_MAX:
        return LATEST
    if ledger_id < 0:
        return EARLIEST
    return Position(ledger_id, max(entry_id, -1))
