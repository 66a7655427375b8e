"""The official Go client against a real standalone. Skipped only where there is no Go."""

from __future__ import annotations

import pytest

from tests.support.client_programs import SCENARIOS, built_with_go, verdicts
from tests.support.standalone import Standalone


@pytest.fixture(scope="module")
def results(shared_standalone: Standalone) -> dict[str, str]:
    return verdicts(shared_standalone, "go", [built_with_go(".", "smoke")], SCENARIOS)


@pytest.mark.client("go")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_go(results: dict[str, str], scenario: str) -> None:
    assert results[scenario] == ""
