"""A line that ends a bad state has the level of the line that began it."""

from __future__ import annotations

import re
from pathlib import Path

import pulsark

RECOVERIES = re.compile(r"\b(again|answers|has begun|caught up|whole)\b")
ORDINARY = {"cannot", "trying", "try again"}
"""Words of lines that say that something is tried again, and is not over."""


def test_no_recovery_is_logged_below_its_loss() -> None:
    found = []
    for path in Path(pulsark.__file__).parent.rglob("*.py"):
        for match in re.finditer(r'log\.(?:info|debug)\(\s*f?"([^"]*)"', path.read_text()):
            text = match[1]
            if RECOVERIES.search(text) and not any(word in text for word in ORDINARY):
                found.append(f"{path}: {text}")
    assert found == []
