"""A simulation in which a request ends with an unexpected error fails."""

from __future__ import annotations

import logging

import pytest

from pulsark.dispatch.loop.defects import Defects
from pulsark.runtime import SystemClock
from tests.sim.defects import no_defects


@pytest.mark.parametrize("level", [logging.NOTSET, logging.CRITICAL], ids=["loud", "quiet"])
def test_a_defect_fails_it_whatever_is_logged(level: int) -> None:
    log = logging.getLogger("pulsark")
    before = log.level
    log.setLevel(level)
    try:
        with no_defects():
            pass
        with pytest.raises(AssertionError, match="a broken thing"), no_defects():
            Defects(SystemClock()).report(ValueError("a broken thing"), "a request")
    finally:
        log.setLevel(before)
