"""What every run has no time for: ``make chaos``, ``make sim`` and ``make planted`` have it."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

EVERYWHERE: Final = "PULSARK_TEST_DEEP"
"""In the environment: these are as all others."""


def deep(*values: Any) -> Any:
    """Parameters of a test, marked ``chaos``."""
    marks = () if EVERYWHERE in os.environ else (pytest.mark.chaos,)
    return pytest.param(*values, marks=marks)
