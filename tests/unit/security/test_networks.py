"""Which addresses have one share."""

from __future__ import annotations

import pytest

from pulsark.security.networks import network_of


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("unix:/a/socket", "unix:/a/socket"),
        ("", ""),
    ],
)
def test_a_machine_has_one_share(host: str, network: str) -> None:
    assert network_of(host) == network
