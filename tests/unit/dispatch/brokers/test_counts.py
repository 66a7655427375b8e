"""Durations, as Prometheus counts them."""

from __future__ import annotations

from pulsark.dispatch.brokers.counts import BUCKETS_SECONDS
from pulsark.dispatch.loop.durations import Durations


def test_each_duration_is_in_all_buckets_from_its_own_on() -> None:
    durations = Durations(BUCKETS_SECONDS)
    for seconds in (0.05, 0.051, 2.0, 1000.0):
        durations.add(seconds)
    found = dict(durations.buckets())
    assert list(found) == [*map(str, BUCKETS_SECONDS), "+Inf"]
    assert [found[bound] for bound in ("0.05", "0.1", "1.0", "2.5", "60.0", "+Inf")] == [
        1,
        2,
        2,
        3,
        3,
        4,
    ]
    assert (durations.count, durations.total_seconds) == (4, 1002.101)
