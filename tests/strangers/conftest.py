"""What cases share: a Spark session and a locked broker, because both are expensive."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.spark.conftest import spark as spark
from tests.support.secured import SUPER_USER, Secured, token

_GRANTS = {"produce": ["produce"], "consume": ["consume"], "both": ["produce", "consume"]}


class Locked(Secured):
    """A locked broker with the tenants ``a`` and ``b``, each with a namespace ``ns``.

    Roles of each: ``a-admin``, and in the namespace ``a-produce``, ``a-consume`` and ``a-both``.
    """

    def http(
        self, method: str, path: str, role: str = SUPER_USER, body: object = None
    ) -> tuple[int, Any]:
        """Send one request as a role; returns its status, and the JSON or text of the answer."""
        return self.raw(method, path, role, None if body is None else json.dumps(body).encode())

    def raw(self, method: str, path: str, role: str, body: bytes | None) -> tuple[int, Any]:
        """Send bytes that are JSON already, or look like it."""
        request = urllib.request.Request(
            self.web_url + path,
            body,
            {"Content-Type": "application/json", "Authorization": f"Bearer {token(role)}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, content = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read().decode()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content

    def client(self, role: str, **options: Any) -> pulsar.Client:
        """The official client, logged in as a role."""
        login = pulsar.AuthenticationToken(token(role))
        return pulsar.Client(self.service_url, authentication=login, **options)

    def fill(self) -> None:
        """Make the tenants, their namespaces and the grants."""
        for tenant in ("a", "b"):
            rules = {"adminRoles": [f"{tenant}-admin"], "allowedClusters": ["standalone"]}
            assert self.http("PUT", f"/admin/v2/tenants/{tenant}", body=rules)[0] == 204
            namespace = f"/admin/v2/namespaces/{tenant}/ns"
            assert self.http("PUT", namespace, body={})[0] == 204
            grants = {
                "produce": ["produce"],
                "consume": ["consume"],
                "both": ["produce", "consume"],
            }
            for name, actions in grants.items():
                role = f"{namespace}/permissions/{tenant}-{name}"
                assert self.http("POST", role, body=actions)[0] == 204


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """One locked broker for all cases; use topics of your own."""
    with Locked(tmp_path_factory.mktemp("locked")) as broker:
        broker.fill()
        yield broker
