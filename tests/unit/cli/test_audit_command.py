"""How ``pulsark audit`` shows events, and which."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from pulsark.cli.admin.audit import Wanted, row, seconds_of
from pulsark.log_format import escaped

DENIED: dict[str, Any] = {
    "time": 1_800_000_000_000,
    "class_uid": 6003,
    "status_id": 2,
    "via": "binary",
    "operation": "SUBSCRIBE",
    "actor": {"role": "kitchen"},
    "resource": {"name": "persistent://cafe/shop/orders", "subscription": "bar"},
    "authz": {"operation": "topic CONSUME", "rule": "none", "granted": False},
    "suppressed": 3,
}
GRANT: dict[str, Any] = {
    "time": 1_800_000_000_000,
    "class_uid": 6003,
    "status_id": 1,
    "via": "rest",
    "operation": "POST /admin/v2/namespaces/{tenant}/{namespace}/permissions/{role}",
    "actor": {"role": "proxy", "original_role": "admin"},
    "resource": {"name": "cafe/shop"},
    "authz": {"operation": "namespace GRANT_PERMISSION", "rule": "superuser", "granted": True},
    "http": {"status": 204},
    "parameters": {"role": "kitchen"},
}
LOGIN: dict[str, Any] = {
    "time": 1_800_000_000_000,
    "class_uid": 3002,
    "status_id": 2,
    "status_detail": "expired",
    "via": "flight",
    "operation": "login",
    "actor": {"method": "token"},
    "src_endpoint": {"ip": "10.0.0.1"},
}
START: dict[str, Any] = {
    "time": 1_800_000_000_000,
    "class_uid": 6002,
    "status_id": 1,
    "via": "broker",
    "operation": "start",
    "broker": "localhost",
}


def test_events_as_people_read_them() -> None:
    at = "01-15 08:00:00"
    assert row(DENIED) == (
        at,
        "kitchen",
        "SUBSCRIBE",
        "cafe/shop/orders (bar)",
        "denied: none, 3 more",
    )
    assert row(GRANT) == (
        at,
        "admin via proxy",
        "namespace GRANT_PERMISSION role=kitchen",
        "cafe/shop",
        "ok",
    )
    assert row(LOGIN) == (at, "10.0.0.1", "login", "", "failed: expired")
    assert row(START) == (at, "localhost", "start", "", "ok")
    assert row({**GRANT, "status_id": 2, "http": {"status": 409}})[4] == "failed: 409"


def test_texts_of_strangers_do_nothing_to_a_terminal() -> None:
    event = {**DENIED, "actor": {"role": "\x1b[2Jkitchen\n"}}
    assert row(event)[1] == "\\u001b[2Jkitchen\\n"
    assert escaped("Küche") == "Küche"


def test_which_events_are_shown() -> None:
    everything = (DENIED, GRANT, LOGIN, START)

    def shown(**wanted: Any) -> list[dict[str, Any]]:
        return [event for event in everything if Wanted(**wanted).matches(event)]

    assert shown() == list(everything)
    assert shown(role="kitchen") == [DENIED]
    assert shown(role="admin") == [GRANT]
    assert shown(resource="cafe/") == [DENIED, GRANT]
    assert shown(denied=True) == [DENIED, LOGIN]


def test_how_far_back() -> None:
    assert [seconds_of(text) for text in ("30m", "7d", "all")] == [1800, 604_800, None]
    for text in ("", "7", "d", "1w", "-1d"):
        with pytest.raises(typer.BadParameter):
            seconds_of(text)
