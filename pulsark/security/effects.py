"""What a request has changed, told by the code that changes it.

A port that serves requests sets a watcher for each. Whatever a request calls, by whichever route or
command and with whichever right, reports its change here; without a watcher that does nothing. So
the audit knows what happened, and need not conclude it from the right that was checked.

Work of the broker itself, such as expiry and retention, calls functions that report nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.wire.topic_name import TopicName


class Changed(Enum):
    """The kinds of changes, in the words of the audit."""

    CURSOR_MOVED = "cursor moved"
    SUBSCRIPTION_CREATED = "subscription created"
    SUBSCRIPTION_CHANGED = "subscription properties changed"
    SUBSCRIPTION_DELETED = "subscription deleted"
    TOPIC_CREATED = "topic created"
    TOPIC_DELETED = "topic deleted"
    PARTITIONS_ADDED = "partitions added"
    SCHEMA_ADDED = "schema added"
    SCHEMA_DELETED = "schema deleted"


class Effect(NamedTuple):
    """One change, and what was changed. A partition stands for its topic."""

    what: Changed
    topic: TopicName
    subscription: str | None = None


_WATCHER: ContextVar[Callable[[Effect], None] | None] = ContextVar("effects", default=None)


def report(what: Changed, topic: TopicName, subscription: str | None = None) -> None:
    """Tell the request's watcher, if there is one, what was changed just now."""
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher(Effect(what, topic.base, subscription))


@contextmanager
def watched(watcher: Callable[[Effect], None]) -> Iterator[None]:
    """Let ``watcher`` hear what is changed within this context, also by tasks that begin in it."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)
