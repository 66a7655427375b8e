"""What a login comes to."""

from __future__ import annotations

import dataclasses

import pytest

from pulsark.security.principal import Principal


def test_a_role_alone_is_somebody_who_never_expires_and_asks_for_itself() -> None:
    principal = Principal("orders")
    assert (principal.original, principal.method, principal.expires_ms) == (None, "none", None)
    assert (principal.address, principal.cn) == ("", None)


def test_nobody_changes_a_principal() -> None:
    principal = Principal("orders")
    with pytest.raises(dataclasses.FrozenInstanceError):
        principal.role = "admin"  # type: ignore[misc]
