"""What a process knows of its session with the metadata store."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pulsark.metadata.session import SURE_PART, Session


class Stepped:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_its_age_and_the_time_for_which_it_is_sure_are_known() -> None:
    clock = Stepped()
    session = Session(cast(Any, clock), 10.0)
    assert (session.age_seconds, session.sure_seconds) == (0.0, 10 * SURE_PART)
    clock.now += 3
    session.heard(clock.now - 1)
    assert session.age_seconds == 3.0
    assert session.sure_seconds == pytest.approx(10 * SURE_PART - 1)
    clock.now += 20
    assert (session.sure_seconds, session.lapses) == (0.0, 0)
    session.heard(clock.now)
    assert session.lapses == 1
    session.heard(clock.now)
    assert session.lapses == 1
    session.end()
    session.heard(clock.now)
    assert (session.sure_seconds, session.lapses) == (0.0, 1)
