"""What the data source asks the admin API for, as the admin API reads it."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.admin.http.requests import subscription_name
from pulsark.datasource.plan.admin_client import AdminClient
from pulsark.datasource.plan.cursor_changes import SubscriptionChange


@pytest.mark.parametrize("name", ["s", "a/b", "a b", "a+b", "100%", "%41", "ü", "a%2Bb"])
def test_any_name_of_a_subscription_arrives_as_it_is(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    paths = []

    def call(client: AdminClient, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        paths.append(path)
        return 204, b""

    monkeypatch.setattr(AdminClient, "_call", call)
    client = AdminClient("http://broker:8080", 1.0)
    client.change_subscription(SubscriptionChange("t", name, "creation", "PUT"))
    client.change_subscription(SubscriptionChange("t", name, "ack", "POST", "/acknowledge"))
    created, acknowledged = (path.split("/subscription/")[1] for path in paths)
    assert subscription_name(created) == name
    assert subscription_name(acknowledged.removesuffix("/acknowledge")) == name
