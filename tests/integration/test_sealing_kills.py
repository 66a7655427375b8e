"""Whoever seals is killed at random moments: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.test_reading_back import reading_process
from tests.support.seal_contract import (
    BOOKIES,
    SETTINGS,
    NoSpark,
    consumed,
    publish,
    rows,
    run_job,
    tables,
)
from tests.support.standalone import Standalone

ROOT = Path(__file__).parents[2]
SEED = 20261121
KILLS = [pytest.param(3, id="three"), pytest.param(20, id="twenty", marks=pytest.mark.chaos)]
EACH = 60

JOB = """
import sys
from tests.support.seal_contract import NoSpark
from pulsark.jobs.job import Context
from pulsark.jobs.runner import run_program
from pulsark.jobs.seal_ledgers import JOB
print("ready", flush=True)
sys.exit(run_program(JOB, sys.argv[1:], Context(JOB.name, given_spark=NoSpark())))
"""


def killed_job(broker: Standalone, after: float) -> int:
    """Start the job, and kill it so many seconds later unless it was faster; its exit code."""
    words = ["--everything", "--task-mb", "1", "--topic", "t"]
    words += ["--service-url", broker.service_url, "--admin-url", broker.web_url]
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, *words], stdout=subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert job.stdout is not None
    job.stdout.readline()
    try:
        return job.wait(after)
    except subprocess.TimeoutExpired:
        job.kill()
        return job.wait()
    finally:
        job.stdout.close()


@pytest.mark.parametrize("kills", KILLS)
def test_the_job_is_killed(tmp_path: Path, kills: int) -> None:
    rng = random.Random(SEED)
    env = {**SETTINGS, "PULSARK_sealByJobs": "true"}
    ended: list[int] = []
    with Standalone(tmp_path / "data", *BOOKIES, env=env) as broker:
        published = 0
        while ended.count(-signal.SIGKILL) < kills:
            publish(broker, "t", published, EACH)
            published += EACH
            ended.append(killed_job(broker, rng.uniform(0.0, 1.5)))
            assert ended[-1] in (0, -signal.SIGKILL)
        before = consumed(broker, "t", "before", published)
        assert run_job(broker, "t", NoSpark()) == 0
        assert [rows(table) for table in tables(broker)] == [published] * 3
        assert consumed(broker, "t", "after", published) == before


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS)
def test_the_process_of_the_broker_is_killed(tmp_path: Path, kills: int) -> None:
    rng = random.Random(SEED)
    env = {**SETTINGS, "PULSARK_sealFreshnessSeconds": "1"}
    with Standalone(tmp_path / "data", *BOOKIES, env=env) as broker:
        published = done = 0
        while done < kills:
            publish(broker, "t", published, EACH)
            published += EACH
            time.sleep(rng.uniform(0.5, 3.0))
            with suppress(ValueError, ProcessLookupError):  # there may be none just now
                os.kill(reading_process(broker), signal.SIGKILL)
                done += 1
        deadline = time.monotonic() + 180  # processes that die in a row are started less often
        while len(found := tables(broker)) < 3 or min(map(rows, found)) < published:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert [rows(table) for table in tables(broker)] == [published] * 3
        assert len(consumed(broker, "t", "after", published)) == published
