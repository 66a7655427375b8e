"""Whether the event loop's thread is busy."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time

import pytest

from pulsark.dispatch.loop.load import BUSY_SHARE, QUIET_SECONDS, LoopLoad, waited_seconds


class Hands:
    """A clock, and the time that the thread worked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used = 7.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def work(self, seconds: float, share: float) -> None:
        self.now += seconds
        self.used += seconds * share


def test_it_is_busy_until_it_was_quiet_for_a_while() -> None:
    hands = Hands()
    load = LoopLoad(hands, lambda: hands.used)
    hands.work(2, BUSY_SHARE - 0.01)
    assert not load.is_busy()
    hands.work(2, BUSY_SHARE + 0.01)
    assert load.is_busy()
    hands.work(QUIET_SECONDS - 0.1, 0)
    assert load.is_busy()
    hands.work(0.1, 0)
    assert not load.is_busy()


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_a_thread_that_shares_a_processor_waits_for_it() -> None:
    waited: list[float] = []

    def burn() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        before = waited_seconds()
        began = time.thread_time()
        while time.thread_time() < began + 0.05:
            hashlib.sha256(bytes(1 << 20))  # without the interpreter's lock
        waited.append(waited_seconds() - before)

    threads = [threading.Thread(target=burn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(waited) > 0.05
