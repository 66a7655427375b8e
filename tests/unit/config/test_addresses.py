"""What ``bindAddress`` means."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.config import addresses
from pulsark.config.addresses import (
    asks_for_login,
    check_access,
    hosts_of,
    is_private,
    plain_ports,
    who_may_come_in,
)
from pulsark.config.settings import Settings
from pulsark.errors import ConfigError


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


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "broker.example"])
def test_other_machines_come_in_only_when_the_operator_says_so(address: str) -> None:
    with pytest.raises(ConfigError, match=r"bindAddress=.*authenticationEnabled.*--insecure"):
        check_access(address, insecure=False)
    check_access(address, insecure=True)
    check_access("localhost", insecure=False)


def test_one_line_tells_who_may_come_in() -> None:
    def told(**given: Any) -> str:
        return who_may_come_in(Settings(**given))

    assert told() == "this machine, without a login"
    everyone = "everyone who reaches 0.0.0.0"
    assert told(bindAddress="0.0.0.0") == f"{everyone}, without a login"
    on = {"bindAddress": "0.0.0.0", "authenticationEnabled": True}
    assert told(**on) == f"{everyone}, with a login"
    assert told(**on, anonymousUserRole="nobody") == f"{everyone}, as nobody without a login"


def test_who_is_anonymous_has_no_login_where_everybody_may_do_everything() -> None:
    on = {"authenticationEnabled": True}
    assert not asks_for_login(Settings())
    assert asks_for_login(Settings(**on))
    assert not asks_for_login(Settings(**on, anonymousUserRole="nobody"))
    assert asks_for_login(Settings(**on, anonymousUserRole="nobody", authorizationEnabled=True))


def test_ports_without_tls_are_named() -> None:
    assert plain_ports(Settings()) == ["brokerServicePort", "webServicePort", "flightServicePort"]
    assert plain_ports(Settings(brokerServicePort=None, flightServicePort=None)) == [
        "webServicePort"
    ]
