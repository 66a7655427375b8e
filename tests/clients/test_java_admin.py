"""Pulsar's admin client for Java, with which operators and tools work."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.load import compile_java
from benchmarks.maven import CACHE, class_path, java
from tests.support.standalone import Standalone

FOLDER = Path(__file__).parent / "java"
LOCK = FOLDER / "pulsar-client-admin-4.0.7.lock"
PROGRAM_SECONDS = 120
pytestmark = pytest.mark.client("java-admin")


@pytest.mark.feature("F27", "F80")
def test_policies(shared_standalone: Standalone) -> None:
    run("Policies", shared_standalone)


@pytest.mark.feature("F27", "F61", "F80")
def test_operations(shared_standalone: Standalone) -> None:
    run("Operations", shared_standalone)


def run(program: str, standalone: Standalone) -> None:
    """Run a program, which prints what is not as it should be."""
    classes = CACHE / "classes" / program.lower()
    path = compile_java(FOLDER / f"{program}.java", class_path(LOCK), classes)
    done = subprocess.run(
        [java(), "-Xmx256m", "-cp", path, program, standalone.web_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-4000:]
