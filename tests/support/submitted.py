"""A job as users submit it: ``spark-submit`` with the settings that the repository ships."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.standalone import Standalone

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 240


def submitted(name: str, broker: Standalone, *words: str, code: int = 0) -> dict[str, Any]:
    """Submit ``jobs/NAME.py`` and wait; asserts its exit code, returns its summary line."""
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "spark-submit"),
            *("--master", "local[2]", "--properties-file", "conf/spark-defaults.conf"),
            *("--conf", "spark.ui.enabled=false"),
            *("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
            f"jobs/{name}.py",
            *words,
            *("--service-url", broker.service_url, "--admin-url", broker.web_url),
        ],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == code, done.stderr[-4000:]
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert summary["job"] == name
    return summary
