"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.standalone import Standalone


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
