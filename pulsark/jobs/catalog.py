"""The list of jobs."""

from __future__ import annotations

import importlib
from typing import Any

from pulsark.errors import near_miss
from pulsark.jobs.job import Job, UsageError

NAMES = (
    "apply_retention",
    "compact_topic",
    "erase_messages",
    "replicate_ledgers",
    "seal_ledgers",
    "topic_to_delta",
)
"""Names of the modules here that have a ``JOB``."""


def job(name: str) -> Job[Any]:
    """A job by its name, in either spelling: ``topic_to_delta``, ``topic-to-delta``."""
    known = name.replace("-", "_")
    if known not in NAMES:
        raise UsageError(
            f"there is no job {name}{near_miss(known, NAMES)}; jobs: {', '.join(NAMES)}"
        )
    found: Job[Any] = importlib.import_module(f"pulsark.jobs.{known}").JOB
    return found
