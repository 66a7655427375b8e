"""What the log says of open ports."""

from __future__ import annotations

import logging

import pytest

from pulsark.config.settings import Settings
from pulsark.processes.access import warn_of_access

LOGIN = {"authenticationEnabled": True, "authenticationProviders": ("token",)}


@pytest.mark.parametrize("login", [{}, LOGIN], ids=["without a login", "with a login"])
@pytest.mark.parametrize(
    ("bound", "advertised", "is_warned"),
    [
        ("localhost", "localhost", False),
        ("0.0.0.0", "localhost", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "m1", False),
    ],
)
def test_a_name_that_leads_other_machines_to_themselves(
    login: dict[str, object],
    bound: str,
    advertised: str,
    is_warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    addresses = {"bindAddress": bound, "advertisedAddress": advertised}
    with caplog.at_level(logging.WARNING):
        warn_of_access(Settings(**addresses, **login))  # type: ignore[arg-type]
    warned = [each for each in caplog.messages if "set advertisedAddress" in each]
    assert len(warned) == is_warned
    assert all(f"advertisedAddress={advertised}: " in each for each in warned)
