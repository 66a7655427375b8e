"""The demo with the first few thousand flights."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.maven import CACHE


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory of its own in which Unix sockets have room for their names."""
    with tempfile.TemporaryDirectory(prefix="demo-") as made:
        yield Path(made)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="standalone"),
        pytest.param(["--cluster", "--brokers", "2"], id="cluster", marks=pytest.mark.chaos),
    ],
)
def test_the_demo_matches_and_leaves_nothing_behind(short_path: Path, words: list[str]) -> None:
    jars = short_path / "cache" / "pulsark"
    jars.parent.mkdir()
    jars.symlink_to(CACHE)
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--flights", "4000", *words],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "TMPDIR": str(short_path),
            "XDG_CACHE_HOME": str(jars.parent),
            "COLUMNS": "200",
        },
        cwd=short_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "matches: " in done.stdout
    assert "4,000 flights" in done.stdout
    assert "What to look at next" in done.stdout
    assert not list(short_path.glob("pulsark-demo-*"))
    assert not _running(str(short_path))


def _running(word: str) -> list[str]:
    """Command lines of all processes that mention a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended since
        if word in line:
            found.append(line)
    return found
