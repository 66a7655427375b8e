"""A copy of the sources in which a bug can be planted, and the tests that run on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tests.sim.deep import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FAILED: Final = 1
"""pytest's exit code for tests that failed; others say that it could not run them."""


def copy_sources(sources: Path, root: Path) -> None:
    """Copy the files of a checkout to an empty folder, but for what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=sources, check=True, capture_output=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (sources / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(sources / name, root / name)
    if (sources / ".cache").exists():  # programs without which some tests are skipped
        (root / ".cache").symlink_to(sources / ".cache")


def run_tests(root: Path, tests: Sequence[str], seconds: float) -> int:
    """Return pytest's exit code for tests of a copy; a run that hangs has failed."""
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-m", "not chaos", "-p", "no:cacheprovider",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(root), EVERYWHERE: "1"}
    run = subprocess.Popen(
        [*command, *tests], cwd=root, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        return FAILED
    finally:
        if run.returncode is None:  # with its children, such as brokers
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
