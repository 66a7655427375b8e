"""``pulsark jobs``: list them, and run one in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pulsark.cli.terminal.output import print_json, print_table
from pulsark.jobs.catalog import NAMES, job
from pulsark.jobs.job import UsageError
from pulsark.jobs.runner import USAGE, run_program


def list_jobs(*, as_json: bool) -> None:
    """Print the jobs there are."""
    found = [(name, job(name).summary) for name in NAMES]
    if as_json:
        print_json([{"job": name, "summary": summary} for name, summary in found])
    else:
        print_table([("JOB", False), ("", False)], found)


def run_job(name: str, words: Sequence[str]) -> int:
    """Run a job; returns its exit code."""
    try:
        wanted = job(name)
    except UsageError as error:
        print(f"pulsark: {error}", file=sys.stderr)
        return USAGE
    return run_program(wanted, words)
