"""A token bucket that may be overdrawn.

Nothing is refused here: whatever happens takes its tokens afterwards, and may overdraw the
bucket. A client that finds it overdrawn waits until it is not. So the rate holds in the long run
whatever one step costs, and a message may be larger than the bucket.
"""

from __future__ import annotations


class TokenBucket:
    """``limit`` tokens come in each ``period`` of seconds, and at most ``limit`` are kept.

    It is full at first. ``now`` is always of one monotonic clock, in seconds. From a clock that
    goes back all the same nothing comes until it goes forth again.
    """

    __slots__ = ("_at", "_rate", "_tokens", "limit")

    def __init__(self, limit: float, now: float, *, period: float = 1.0) -> None:
        self._rate = _rate(limit, period)
        self.limit = limit
        """Most tokens that there can be."""
        self._tokens = limit
        self._at = now

    def tokens(self, now: float) -> float:
        """How many there are; a negative number is a debt."""
        passed = now - self._at
        if passed:
            self._at = now
            if passed > 0 and self._tokens < self.limit:
                self._tokens = min(self.limit, self._tokens + passed * self._rate)
        return self._tokens

    def take(self, count: float, now: float) -> float:
        """Take tokens for something that happened. Returns what is left, as ``tokens`` does."""
        self._tokens = self.tokens(now) - count
        return self._tokens

    def wait(self, now: float, *, until: float = 0.0) -> float:
        """Seconds until there are ``until`` tokens (at most ``limit``) if none is taken; or 0."""
        missing = min(until, self.limit) - self.tokens(now)
        return missing / self._rate if missing > 0 else 0.0

    def change(self, limit: float, now: float, *, period: float = 1.0) -> None:
        """Another rate from now on. What came before stays, but no more than it allows.

        Nor is more owed than one ``limit``: a debt that was small in the old rate may be years of
        the new one, and the other way round it should not outlive a mistake.
        """
        self._tokens = max(-limit, min(limit, self.tokens(now)))
        self._rate = _rate(limit, period)
        self.limit = limit


def _rate(limit: float, period: float) -> float:
    if not (limit > 0 and period > 0):
        raise ValueError(f"not a rate: {limit} in {period} s")
    return limit / period
