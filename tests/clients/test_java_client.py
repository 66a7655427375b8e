"""The official Java client against a real standalone."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import LOCK, compile_java
from benchmarks.maven import CACHE, class_path, java
from tests.support.client_programs import SCENARIOS, verdicts
from tests.support.standalone import Standalone

SOURCE = Path(__file__).parent / "java" / "Smoke.java"


@pytest.fixture(scope="module")
def results(shared_standalone: Standalone) -> dict[str, str]:
    path = compile_java(SOURCE, class_path(LOCK), CACHE / "classes" / "smoke")
    return verdicts(shared_standalone, "java", [java(), "-Xmx512m", "-cp", path, "Smoke"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java(results: dict[str, str], scenario: str) -> None:
    assert results[scenario] == ""
