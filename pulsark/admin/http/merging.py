"""How the answers of several brokers become one, where it is the same for many routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.requests import done, empty, value
from pulsark.admin.http.spreading import Part, failure

if TYPE_CHECKING:
    from pulsark.admin.http.places import Merge
    from pulsark.dispatch.broker import Broker


def all_done(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """204 if all is done."""
    return failure(parts) or done()


def all_empty(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """200 if all is done."""
    return failure(parts) or empty()


def done_unless_all(status: int) -> Merge:
    """204, also if this is the answer of some: there was nothing to do."""

    def merge(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
        return failure(parts, status) or done()

    return merge


def all_names(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """All of several lists of names, each once, in the order in which they come."""
    found = dict.fromkeys(name for part in parts if part.is_done for name in part.json)
    return failure(parts) or value(list(found))


def sorted_names(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """The same, sorted."""
    found = {name for part in parts if part.is_done for name in part.json}
    return failure(parts) or value(sorted(found))


def first_found(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """The answer of the first that has one."""
    failed = failure(parts, 404)
    return failed or value(next(part.json for part in parts if part.is_done))


def objects_of_those_found(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """One object with the members of several."""
    found: dict[str, object] = {}
    for part in parts:
        if part.is_done:
            found |= part.json
    return failure(parts, 404) or value(found)


def by_name(make: Callable[[Broker, Request, dict[str, object]], Response]) -> Merge:
    """What is made of the answers by the names of partitions."""

    def merge(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
        failed = failure(parts)
        return failed or make(broker, request, {part.of: part.json for part in parts})

    return merge
