"""What ``pulsark produce`` and ``consume`` say when the client library gives up."""

from __future__ import annotations

import pytest

from pulsark.cli.admin.messages import _reason


@pytest.mark.parametrize("name", ["ConnectError", "Timeout", "RetryableError"])
def test_a_broker_that_lets_nobody_in_may_have_refused_the_login(name: str) -> None:
    said = _reason(type(name, (Exception,), {})(), None)
    assert name in said
    assert "login" in said
    assert "certificate" in said


def test_the_brokers_own_words_are_told() -> None:
    assert _reason(type("Timeout", (Exception,), {})(), "not yours") == "not yours (Timeout)"
