"""``pulsark permissions`` says what a role may do, and why."""

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
