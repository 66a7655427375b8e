"""A rate of publishes, in messages and in bytes. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pulsark.rates.bucket import TokenBucket
from pulsark.rates.limits import PUBLISH_HOLD_SECONDS_MAX

_ENOUGH = 0.01
"""The share of a second's tokens that must be available before a client goes on, as in Pulsar."""


class PublishRate(NamedTuple):
    """Messages and bytes in a second; 0 or less is no limit."""

    messages: int = 0
    bytes: int = 0

    @property
    def is_limit(self) -> bool:
        """Whether this is a limit at all."""
        return self.messages > 0 or self.bytes > 0


NO_LIMIT = PublishRate()


class PublishLimit:
    """The debt of the publishes under one rate.

    The debt never exceeds what the longest hold pays off, because a client may claim that a batch
    has a billion messages.
    """

    __slots__ = ("_bytes", "_messages")

    def __init__(self, rate: PublishRate, now: float) -> None:
        self._messages = _bucket(None, rate.messages, now)
        self._bytes = _bucket(None, rate.bytes, now)

    def change(self, rate: PublishRate, now: float) -> None:
        """Change the rate; see `TokenBucket.change`."""
        self._messages = _bucket(self._messages, rate.messages, now)
        self._bytes = _bucket(self._bytes, rate.bytes, now)

    def take(self, messages: int, size: int, now: float) -> bool:
        """Count a publish. Returns whether it exceeds the rate."""
        messages_left = _take(self._messages, messages, now)
        bytes_left = _take(self._bytes, size, now)
        return messages_left < 0 or bytes_left < 0

    def is_overdrawn(self, now: float) -> bool:
        """Whether the publishes exceed the rate."""
        return any(bucket.tokens(now) < 0 for bucket in self._buckets)

    def wait(self, now: float) -> float:
        """Seconds until the next publish is allowed, or 0."""
        waits = (bucket.wait(now, until=_ENOUGH * bucket.limit) for bucket in self._buckets)
        return max(waits, default=0.0)

    @property
    def _buckets(self) -> list[TokenBucket]:
        return [bucket for bucket in (self._messages, self._bytes) if bucket is not None]


def _bucket(before: TokenBucket | None, limit: int, now: float) -> TokenBucket | None:
    if limit <= 0:
        return None
    if before is None:
        return TokenBucket(limit, now)
    before.change(limit, now)
    return before


def _take(bucket: TokenBucket | None, count: int, now: float) -> float:
    if bucket is None:
        return 0.0
    most = bucket.tokens(now) + PUBLISH_HOLD_SECONDS_MAX * bucket.limit
    return bucket.take(min(count, most), now)
