"""``pulsark resource-groups``, and the policy that names a group, against the real admin API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.admin_client.client import AdminClient, Answer
from pulsark.cli import main
from pulsark.cli.admin import policies, resource_groups
from tests.support.admin_api import AdminApi


class InMemory(AdminClient):
    """Asks an admin API that has no port."""

    def __init__(self, api: AdminApi) -> None:
        super().__init__("http://in-memory")
        self._api = api

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        answer = self._api.call(method, f"/admin/v2{path}", body)
        return Answer(answer.status, answer.body)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    api = AdminApi()
    for module in (policies, resource_groups):
        monkeypatch.setattr(module, "admin_client", lambda url: InMemory(api))

    def run_one(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["pulsark", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        assert not code, said.err
        return said.out

    yield run_one
    api.close()


def test_a_group_is_set_joined_shown_left_and_deleted(run: Any) -> None:
    assert run("resource-groups", "list") == "No resource groups\n"
    assert run("resource-groups", "set", "gold", "--publish-bytes", "7") == "Set gold\n"
    assert run("resource-groups", "list") == "gold\n"
    assert json.loads(run("resource-groups", "list", "--json")) == ["gold"]
    shown = json.loads(run("resource-groups", "get", "gold"))
    assert (shown["publishRateInMsgs"], shown["publishRateInBytes"]) == (-1, 7)
    run("policies", "set", "public/default", "resourcegroup", "gold")
    assert json.loads(run("policies", "get", "public/default", "resourcegroup")) == "gold"
    run("policies", "remove", "public/default", "resourcegroup")
    assert json.loads(run("policies", "get", "public/default", "resourcegroup")) is None
    assert run("resource-groups", "delete", "gold") == "Deleted gold\n"
