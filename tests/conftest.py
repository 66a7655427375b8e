"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.standalone import Standalone

# A shell starts background jobs with SIGINT ignored, and processes inherit that. Tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run; HYPOTHESIS_PROFILE=long looks for new ones.
settings.register_profile("quick", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def shared_standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """One standalone for all tests that need no special treatment; use unique topic names."""
    with Standalone(tmp_path_factory.mktemp("standalone") / "data") as standalone:
        yield standalone


@pytest.fixture
def standalone(tmp_path) -> Iterator[Standalone]:  # type: ignore[no-untyped-def]
    """A standalone of the test's own."""
    with Standalone(tmp_path / "data") as process:
        yield process
