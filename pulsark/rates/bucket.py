"""A token bucket that may be overdrawn.

Nothing is refused: an event takes its tokens after it happened, and may overdraw the bucket. A
client that finds the bucket overdrawn waits until it is not. So the average rate is kept even if
one message is larger than the bucket.
"""

from __future__ import annotations


class TokenBucket:
    """Adds ``limit`` tokens in each ``period`` of seconds, and keeps at most ``limit``.

    It starts full. ``now`` is from one monotonic clock, in seconds. If that clock goes back, no
    tokens are added until it has caught up.
    """

    __slots__ = ("_at", "_rate", "_tokens", "limit")

    def __init__(self, limit: float, now: float, *, period: float = 1.0) -> None:
        self._rate = _rate(limit, period)
        self.limit = limit
        """The most tokens that the bucket can have."""
        self._tokens = limit
        self._at = now

    def tokens(self, now: float) -> float:
        """The tokens available; a negative number is a debt."""
        passed = now - self._at
        if passed:
            self._at = now
            if passed > 0 and self._tokens < self.limit:
                self._tokens = min(self.limit, self._tokens + passed * self._rate)
        return self._tokens

    def take(self, count: float, now: float) -> float:
        """Take tokens for an event that happened. Returns what is left, like ``tokens``."""
        self._tokens = self.tokens(now) - count
        return self._tokens

    def wait(self, now: float, *, until: float = 0.0) -> float:
        """Seconds until there are ``until`` tokens (at most ``limit``) if no one takes any."""
        missing = min(until, self.limit) - self.tokens(now)
        return missing / self._rate if missing > 0 else 0.0

    def change(self, limit: float, now: float, *, period: float = 1.0) -> None:
        """Change the rate. Tokens and debt are kept, but at most one ``limit`` of either.

        A debt that was small at the old rate could take years to pay off at the new one.
        """
        self._tokens = max(-limit, min(limit, self.tokens(now)))
        self._rate = _rate(limit, period)
        self.limit = limit


def _rate(limit: float, period: float) -> float:
    if not (limit > 0 and period > 0):
        raise ValueError(f"not a rate: {limit} in {period} s")
    return limit / period
