"""What ``bindAddress`` means."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.connection import addresses
from pulsark.dispatch.connection.addresses import hosts_of, is_private


def test_by_default_nobody_else_can_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    default = Settings().bindAddress
    assert is_private(default)
    assert hosts_of(default, 0) == ["127.0.0.1"]
    monkeypatch.setattr(addresses, "_has", lambda _: True)
    assert hosts_of(default, 6650) == ["127.0.0.1", "::1"]
    monkeypatch.setattr(addresses, "_has", lambda _: False)
    assert hosts_of(default, 6650) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("broker.example", False),
    ],
)
def test_what_is_asked_for(address: str, private: bool) -> None:
    assert hosts_of(address, 6650) == [address]
    assert is_private(address) == private
