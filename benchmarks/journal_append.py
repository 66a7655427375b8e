"""What an append to the embedded bookie costs: loop time per run and entry, and latency.

    python benchmarks/journal_append.py [--dir DIR] [--switch-interval SECONDS]

``loop us`` is CPU time of the event loop's thread. ``busy`` keeps the loop at work with
callbacks of 30 to 500 us, which makes the journal's thread fight for the interpreter lock; that
is where ``sys.setswitchinterval`` matters (``runtime.hand_over_promptly``). A directory in memory
(``--dir /dev/shm``) shows the cost without the disk's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time

from pulsark.runtime import SWITCH_INTERVAL_SECONDS, Runtime
from pulsark.storage.bookie.bookie import EntryRun
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_settings import JournalSettings

PAYLOAD = b"x" * 1024


def raise_error(error: BaseException | None) -> None:
    if error is not None:
        raise error


async def append(bookie: EmbeddedBookie, run: EntryRun) -> None:
    future = asyncio.get_running_loop().create_future()
    bookie.append(run, lambda error: future.set_result(error))
    raise_error(await future)


async def lone(bookie: EmbeddedBookie, ledger_id: int, count: int) -> list[float]:
    """Milliseconds of ``count`` appends, one after the other."""
    times = []
    for n in range(count):
        start = time.perf_counter()
        await append(bookie, EntryRun(ledger_id, n, n - 1, [PAYLOAD]))
        times.append((time.perf_counter() - start) * 1000)
    return times


async def busy_lone(
    bookie: EmbeddedBookie, ledger_id: int, count: int, callback_us: float
) -> list[float]:
    """The same while the loop has no idle moment."""
    loop = asyncio.get_running_loop()
    stop = False

    def burn() -> None:
        end = time.perf_counter() + callback_us / 1e6
        while time.perf_counter() < end:
            pass
        if not stop:
            loop.call_soon(burn)

    loop.call_soon(burn)
    try:
        return await lone(bookie, ledger_id, count)
    finally:
        stop = True


async def pipelined(
    bookie: EmbeddedBookie, ledger_id: int, run_entries: int, total: int, window: int
) -> tuple[float, float]:
    """``(seconds, loop seconds)`` for ``total`` entries with at most ``window`` runs pending."""
    finished = asyncio.Event()
    payloads = [PAYLOAD] * run_entries
    sent = done = 0

    def on_done(error: BaseException | None) -> None:
        nonlocal done
        raise_error(error)
        done += run_entries
        if done == total:
            finished.set()
        elif sent < total:
            send()

    def send() -> None:
        nonlocal sent
        bookie.append(EntryRun(ledger_id, sent, done - 1, payloads), on_done)
        sent += run_entries

    start, cpu = time.perf_counter(), time.thread_time()
    for _ in range(window):
        send()
    await finished.wait()
    return time.perf_counter() - start, time.thread_time() - cpu


def show(name: str, times: list[float]) -> None:
    times.sort()
    p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
    print(f"{name:34s} p50 {p50:7.3f} ms   p99 {p99:7.3f} ms")


async def main(directory: str) -> None:
    bookie = await EmbeddedBookie.open(
        "bench", f"{directory}/journal", f"{directory}/ledger", JournalSettings(), Runtime()
    )
    await lone(bookie, 1, 50)
    show("lone append, idle loop", await lone(bookie, 2, 500))
    for callback_us in (30, 50, 500):
        times = await busy_lone(bookie, 3 + callback_us, 200, callback_us)
        show(f"lone append, busy loop ({callback_us} us)", times)
    for entries, total, window in ((1, 60_000, 2000), (100, 200_000, 40), (1000, 200_000, 8)):
        seconds, cpu = await pipelined(bookie, 1000 + entries, entries, total, window)
        runs = total / entries
        print(
            f"runs of {entries:4d} x 1 KiB: {total / seconds:9,.0f} entries/s, "
            f"loop {cpu / total * 1e6:.2f} us/entry = {cpu / runs * 1e6:.1f} us/run"
        )
    await bookie.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="where to write (default: a temporary directory)")
    parser.add_argument("--switch-interval", type=float, default=SWITCH_INTERVAL_SECONDS)
    parser.add_argument("--asyncio", action="store_true", help="asyncio's loop, not uvloop")
    options = parser.parse_args()
    sys.setswitchinterval(options.switch_interval)
    runner = asyncio.run
    if not options.asyncio:
        import uvloop

        runner = uvloop.run
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        runner(main(scratch))
