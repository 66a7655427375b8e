"""What the view ``cursors`` asks the admin API for, as the admin API reads it."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.admin.http.requests import subscription_name
from pulsark.admin_client.client import Answer
from pulsark.datasource.admin.client import SparkAdmin
from pulsark.datasource.plan.cursor_changes import SubscriptionChange
from pulsark.datasource.write.cursor_writer import carry_out


class FakeAdmin(SparkAdmin):
    def __init__(self) -> None:
        super().__init__("http://broker:8080", 1.0)
        self.paths: list[str] = []

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        self.paths.append(path)
        return Answer(204, b"")


@pytest.mark.parametrize("name", ["s", "a/b", "a b", "a+b", "100%", "%41", "ü", "a%2Bb"])
def test_any_name_of_a_subscription_arrives_as_it_is(name: str) -> None:
    admin = FakeAdmin()
    carry_out(SubscriptionChange("t", name, "creation", "PUT"), admin)
    carry_out(SubscriptionChange("t", name, "ack", "POST", "/acknowledge"), admin)
    created, acknowledged = (path.split("/subscription/")[1] for path in admin.paths)
    assert subscription_name(created) == name
    assert subscription_name(acknowledged.removesuffix("/acknowledge")) == name
