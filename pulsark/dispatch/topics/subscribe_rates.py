"""How often a consumer may subscribe."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import ClientError, ServerError
from pulsark.limits import SUBSCRIBE_RATES_REMEMBERED_MAX
from pulsark.rates.bucket import TokenBucket

if TYPE_CHECKING:
    from pulsark.dispatch.policies.policies import SubscribeRate
    from pulsark.runtime import Clock


class Subscriber(NamedTuple):
    """A consumer, as it is known again when it comes back."""

    topic: str
    host: str
    name: str
    consumer_id: int


class SubscribeRates:
    """The subscribe rates of one broker's consumers, as far as they are remembered.

    Who they are, clients say themselves, so this holds back a client that errs and not one that
    attacks. The memory is bounded: who came least recently is forgotten, and may come again.
    """

    def __init__(self, clock: Clock, most: int = SUBSCRIBE_RATES_REMEMBERED_MAX) -> None:
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[Subscriber, tuple[SubscribeRate, TokenBucket]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def check(self, subscriber: Subscriber, rate: SubscribeRate) -> None:
        """Count a SUBSCRIBE, or raise ``ClientError``: there were too many."""
        if rate.per_consumer <= 0:
            return
        now = self._clock.monotonic()
        before, bucket = self._buckets.pop(subscriber, (None, None))
        if bucket is None or before != rate:
            bucket = TokenBucket(rate.per_consumer, now, period=rate.period_seconds)
        self._buckets[subscriber] = rate, bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if bucket.tokens(now) < 1:
            raise ClientError(
                ServerError.NotAllowedError,
                "Subscribe limited by subscribe rate limit per consumer.",
            )
        bucket.take(1, now)
