"""Hostile clients against a live broker. ``python -m tests.fuzz`` does it for hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.live import LiveFuzz

FRAMES = 20_000
PING_P99_MS = 500.0
"""Other tests take the processors meanwhile; without them the goal is a tenth of it."""


@pytest.mark.slow
def test_hostile_clients_break_nothing(tmp_path: Path) -> None:
    found = LiveFuzz(tmp_path, seed=1).run(FRAMES, ping_p99_ms=PING_P99_MS)
    assert found.problems == [], f"seed {found.seed}"
    assert found.confirmed > 200
    assert found.requests > 100
    assert found.calls > 100
