"""``python -m tests.sim``: many runs of the random simulation, and any of them again.

    python -m tests.sim --seeds 100000            from seed 0 on
    python -m tests.sim --hours 6 --seed 5000000  as many as there is time for
    python -m tests.sim --seed 17 --seeds 1       that one again
    python -m tests.sim --several --hours 1       of several brokers with a cluster's metadata

Prints how many seeds an hour that is. A run that breaks a promise prints its seed, its faults and
the first bad event, and the exit code is 1. One seed in a hundred is run twice, and must do the
same twice.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import count, islice

from tests.sim.world import World

REPORT_SECONDS = 60.0
TWICE_EVERY = 100
CHUNKS_OF_A_PROCESS = 100
"""A simulated crash leaves coroutines that are never freed: after hours they would be gigabytes."""


def run_several(seed: int) -> tuple[int, str]:
    """The same for several brokers."""
    from tests.sim import test_several_brokers_random as several

    try:
        several.run_seed(seed)
    except Exception:
        return seed, traceback.format_exc()
    return seed, ""


def run_seed(seed: int) -> tuple[int, str]:
    """The seed, and what went wrong."""
    world = World(seed)
    try:
        world.run()
        if seed % TWICE_EVERY == 0:
            again = World(seed)
            again.run()
            assert again.digest == world.digest, "the same seed did something else"
    except Exception:
        return seed, f"{world.faults}\n{traceback.format_exc()}"
    return seed, ""


def forget_what_crashed() -> None:
    """Print nothing of coroutines that a simulated crash cut off: nobody is there to end them."""
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not inspect.iscoroutine(unraisable.object):
            sys.__unraisablehook__(unraisable)

    sys.unraisablehook = hook


def results(
    seeds: Iterator[int], processes: int, run: Callable[[int], tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    """What became of each seed, in no particular order."""
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.Pool(processes, maxtasksperchild=CHUNKS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


def main(arguments: list[str]) -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one (0)")
    parser.add_argument("--seeds", type=int, default=None, help="how many (1000, or for --hours)")
    parser.add_argument("--hours", type=float, default=None, help="stop after so long")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-going", action="store_true", help="also after a failure")
    parser.add_argument("--several", action="store_true", help="several brokers, not one")
    given = parser.parse_args(arguments)
    run = run_several if given.several else run_seed
    many = given.seeds if given.seeds is not None else None if given.hours else 1000
    start = reported = time.monotonic()
    seeds: Iterator[int] = islice(count(given.seed), many)
    # Looked at here and not where the seeds come from: a pool takes hundreds of them in advance.
    end = float("inf") if given.hours is None else start + given.hours * 3600
    done = failed = 0
    for seed, wrong in results(seeds, given.processes, run):
        done += 1
        if wrong:
            failed += 1
            print(f"seed {seed} failed: {wrong}", flush=True)
            if not given.keep_going:
                break
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            reported = now
            print(_summary(done, failed, now - start), flush=True)
        if now >= end:
            break
    print(_summary(done, failed, time.monotonic() - start))
    return 1 if failed else 0


def _summary(done: int, failed: int, seconds: float) -> str:
    return f"{done} seeds, {failed} failed, {done / seconds * 3600:,.0f} an hour"


if __name__ == "__main__":
    logging.getLogger("pulsark").setLevel(logging.CRITICAL)
    forget_what_crashed()
    sys.exit(main(sys.argv[1:]))
