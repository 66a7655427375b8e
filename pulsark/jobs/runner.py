"""Runs a job as a program: exit code 0 done, 1 failed, 2 wrong usage, 130 stopped by a signal.

The last line on standard output is a JSON object, also of a run that failed: ``job``, ``status``
(``done``, ``failed``, ``stopped``), ``seconds``, what the job says, and ``error``. Everything
else goes to standard error.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from pulsark.errors import PulsarkError
from pulsark.jobs.job import Context, Job, Repeated, UsageError
from pulsark.jobs.parameters import parse, usage
from pulsark.runtime import SystemClock

DONE, FAILED, USAGE, STOPPED = 0, 1, 2, 130


def main(job: Job[Any], words: Sequence[str] | None = None) -> NoReturn:
    """Run as the program that this process is."""
    sys.exit(run_program(job, sys.argv[1:] if words is None else words))


def run_program(job: Job[Any], words: Sequence[str], context: Context | None = None) -> int:
    """Run a job as the words of a command line say; returns the exit code."""
    if "--help" in words or "-h" in words:
        print(usage(job.name, job.summary, job.parameters))
        return DONE
    try:
        wanted = parse(job.parameters, words, os.environ)
    except UsageError as error:
        print(f"{job.name}: {error}; --help lists the flags", file=sys.stderr)
        return USAGE
    context = context or Context(job.name)
    try:
        with _stoppable():
            code = run_once(job, wanted, context)
            while isinstance(wanted, Repeated) and wanted.every > 0 and code != STOPPED:
                threading.Event().wait(wanted.every)
                code = run_once(job, wanted, context)
            return code
    except KeyboardInterrupt:
        return STOPPED  # between two runs
    finally:
        with suppress(KeyboardInterrupt):
            context.close()


def run_once(job: Job[Any], wanted: Any, context: Context) -> int:
    """One run, with its line on standard output."""
    clock = SystemClock()
    began = clock.monotonic()
    summary: dict[str, Any] = {"job": job.name, "status": "done", "seconds": 0.0}
    code = DONE
    try:
        summary |= job.run(wanted, context)
    except KeyboardInterrupt:
        summary["status"], code = "stopped", STOPPED
    except Exception as error:  # noqa: BLE001 - the summary tells it
        summary |= {"status": "failed", "error": _reason(error)}
        code = USAGE if isinstance(error, UsageError) else FAILED
        context.progress.close()
        if not isinstance(error, PulsarkError) and not _is_spark(error):
            traceback.print_exc()  # a bug keeps its trace
        print(f"{job.name}: {summary['error']}", file=sys.stderr)
    context.progress.close()
    summary["seconds"] = round(clock.monotonic() - began, 3)
    print(json.dumps(summary, ensure_ascii=False), flush=True)
    return code


def _reason(error: Exception) -> str:
    """One line; of an error that came through Spark what our own code said in it."""
    text = str(error)
    ours = re.search(r"pulsark: .+", text) if _is_spark(error) else None
    line = ours[0] if ours else " ".join(text.split()) if not _is_spark(error) else _first(text)
    return line.removeprefix("pulsark: ") or type(error).__name__


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _is_spark(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM stops a job as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
