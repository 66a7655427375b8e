"""What many delayed messages cost in memory: ``python -m benchmarks.delayed_index [MILLIONS]``.

Positions with delays of up to 30 days go into a tracker as one subscription would meet them.
Buckets are stored in a bookie in memory that keeps nothing but a count of bytes.
"""

from __future__ import annotations

import random
import resource
import sys
import time

from pulsark.dispatch.subscription.delayed_entries import HeldBack
from pulsark.dispatch.subscription.delayed_tracker import BUCKET_KEYS, DelayedDeliveryTracker
from pulsark.storage.delayed.delayed_pages import encode_header, encode_page
from pulsark.wire.position import Position

LEDGER_ENTRIES = 50_000
EVERY = 3
"""One entry in so many is delayed: sparse enough that bitmaps are at their largest."""


def rss_mib() -> float:
    """The largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    count = int(float(sys.argv[1] if len(sys.argv) > 1 else "10") * 1e6)
    rng = random.Random(1)
    before = rss_mib()
    tracker, held, stored = DelayedDeliveryTracker(), HeldBack(), 0
    start = time.perf_counter()
    for number in range(count):
        place = number * EVERY
        position = Position(place // LEDGER_ENTRIES, place % LEDGER_ENTRIES)
        held.waiting.add(position)
        if tracker.add(1_700_000_000_000 + rng.randrange(30 * 86_400_000), position):
            packed = tracker.pack()
            assert packed is not None
            bucket, pages = packed
            stored += len(encode_header("t", pages)) + sum(map(len, map(encode_page, pages)))
            tracker.stored(bucket, number // BUCKET_KEYS)
    seconds = time.perf_counter() - start
    print(f"{count:,} delayed positions: {rss_mib() - before:.0f} MiB more resident memory")
    print(f"  of it the tracker {tracker.memory_bytes / 2**20:.0f} MiB", end="")
    print(f" and the subscription {held.memory_bytes / 2**20:.0f} MiB")
    print(f"  stored {stored / 2**20:.0f} MiB, {stored / count:.1f} bytes each")
    print(f"  {count / seconds:,.0f} a second, storing included")


if __name__ == "__main__":
    main()
