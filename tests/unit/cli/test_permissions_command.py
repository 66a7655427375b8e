"""``pulsark permissions`` grants roles what they may do, shows it, and says why."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pulsark.cli import main
from pulsark.cli.admin import permissions


class FakeAdmin:
    """Notes what is asked for."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.paths: list[str] = []

    def get(self, path: str) -> Any:
        self.paths.append(path)
        return self.answer

    def call(self, method: str, path: str, body: Any = None) -> None:
        self.paths.append(f"{method} {path} {body}")


def run(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin, *words: str) -> int:
    monkeypatch.setattr(permissions, "admin_client", lambda url: admin)
    monkeypatch.setattr(sys, "argv", ["pulsark", "permissions", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (
            {"granted": True, "rule": "topic_grant", "needs": "produce"},
            0,
            "a/b may PRODUCE: it was granted on the topic. It needs produce.\n",
        ),
        (
            {"granted": False, "rule": "none", "needs": "produce"},
            1,
            "a/b may not PRODUCE: nothing grants it. It needs produce.\n",
        ),
    ],
)
def test_why(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any],
    code: int,
    said: str,
) -> None:
    admin = FakeAdmin(answer)
    assert run(monkeypatch, admin, "why", "a/b", "produce", "clicks", "-s", "x y") == code
    assert capsys.readouterr().out == said
    assert admin.paths == [
        "/persistent/public/default/clicks/permissions/a%2Fb/produce?subscription=x%20y"
    ]


def test_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, FakeAdmin({}), "show", "clicks") == 0
    assert capsys.readouterr().out == "Nothing was granted\n"
    assert run(monkeypatch, FakeAdmin({"r": ["consume", "produce"]}), "show", "clicks") == 0
    assert "consume, produce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("cafe/shop", "/namespaces/cafe/shop/permissions"),
        ("clicks", "/persistent/public/default/clicks/permissions"),
        ("cafe/shop/orders", "/persistent/cafe/shop/orders/permissions"),
        ("non-persistent://cafe/shop/t", "/non-persistent/cafe/shop/t/permissions"),
    ],
)
def test_grants_are_made_and_revoked_for_namespaces_and_topics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str, path: str
) -> None:
    admin = FakeAdmin({})
    assert run(monkeypatch, admin, "grant", where, "a/b", "produce", "consume") == 0
    assert run(monkeypatch, admin, "show", where) == 0
    assert run(monkeypatch, admin, "revoke", where, "a/b") == 0
    assert admin.paths == [
        f"POST {path}/a%2Fb ['produce', 'consume']",
        path,
        f"DELETE {path}/a%2Fb None",
    ]
    assert f"a/b may produce and consume in {where}\n" in capsys.readouterr().out
