"""Spark Connect: what works in a classic session works through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.standalone import Standalone

HERE = Path(__file__).parent
SECONDS = 580


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 20)
def test_topics_are_written_streamed_and_read(broker: Standalone, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "connect_driver.py"), str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(HERE.parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "PULSARK_SERVICE_URL": broker.service_url,
            "PULSARK_ADMIN_URL": broker.web_url,
            # A free port for the server, in place of 15002.
            "SPARK_TESTING": "1",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    ours = found["ours"]
    assert ours["kind"] == "pyspark.sql.connect.session"
    assert [rows for rows in ours["batches"] if rows] == [40, 40, 10]
    assert ours["backlog"] == [0]
    assert ours["sql"] == [[90]]
    assert ours["pushdown"] == 30
    assert "did you mean 'topics'" in ours["error"]
    assert found["plain"]["values"] == list(range(90))
    assert "Failed to set spark.python" not in done.stderr, "warnings at the start of a session"
