"""The official Go client against a real standalone. Skipped only where there is no Go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.maven import CACHE
from tests.support.client_programs import SCENARIOS, verdicts
from tests.support.standalone import Standalone

MODULE = Path(__file__).parent / "go"


@pytest.fixture(scope="module")
def results(shared_standalone: Standalone) -> dict[str, str]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go command")
    program = CACHE / "go" / "smoke"
    program.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=MODULE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return verdicts(shared_standalone, "go", [str(program)], SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_go(results: dict[str, str], scenario: str) -> None:
    assert results[scenario] == ""
