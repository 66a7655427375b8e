"""How hostile clients come to the three ports of a broker: as everybody, or with a login."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from random import Random
from urllib.parse import urlsplit

import pyarrow.flight as fl

from pulsark.admin_client.client import AdminClient
from pulsark.wire import pulsar_pb2 as pb
from tests.fuzz import values
from tests.fuzz.script import NAMESPACES
from tests.support.secured import SUPER_USER, Secured, token
from tests.support.standalone import Standalone

WITNESS = "witness"
ROLES = (SUPER_USER, "client", "client", "client", "stranger")
"""``client`` may publish and consume; ``stranger`` may log in."""
STRANGE_LOGINS = 0.05
"""The share of logins that no broker must take."""


class Doors:
    """Those of a broker to which everybody may come."""

    def __init__(self, broker: Standalone) -> None:
        self._broker = broker

    def open(self, rng: Random) -> socket.socket:
        """A connection to the binary port."""
        return socket.create_connection(("127.0.0.1", self._broker.broker_port), timeout=30)

    def introduce(self, rng: Random, connect: pb.CommandConnect) -> None:
        """Fill in who the client is."""

    def headers(self, rng: Random) -> dict[str, str]:
        """What a request brings along, over HTTP and Flight."""
        return {}

    def http(self, rng: Random, timeout: float) -> http.client.HTTPConnection:
        """A connection to the HTTP port."""
        return _plain_http(self._broker, timeout)

    def flight(self, rng: Random) -> fl.FlightClient:
        """A client of the Flight port."""
        return fl.connect(self._broker.flight_url)

    def admin(self) -> AdminClient:
        """For who prepares the broker, and looks at it when all have gone."""
        return AdminClient(self._broker.web_url)

    def friendly_headers(self) -> dict[str, str]:
        """What such a one brings along to Flight."""
        return {}

    def witness_token(self) -> str:
        """That of the innocent client; empty: none is needed."""
        return ""

    def secrets(self) -> list[str]:
        """What must be in no log."""
        return []


class SecuredDoors(Doors):
    """Those of a broker that asks for tokens and rights, with TLS and without."""

    def __init__(self, broker: Secured) -> None:
        super().__init__(broker)
        self._secured = broker
        self._tokens = {role: token(role) for role in {*ROLES, WITNESS}}

    def prepare(self) -> None:
        """Grant what the roles need; the namespaces are there."""
        for namespace in NAMESPACES:
            path = f"/namespaces/{namespace}/permissions/client"
            self.admin().call("POST", path, ["produce", "consume"])

    def open(self, rng: Random) -> socket.socket:
        if rng.random() < 0.5:
            return super().open(rng)
        return self._secured.over_tls("brokerServiceUrlTls")

    def introduce(self, rng: Random, connect: pb.CommandConnect) -> None:
        connect.auth_method_name = "token"
        if rng.random() >= STRANGE_LOGINS:
            connect.auth_data = self._token(rng).encode()
            return
        connect.auth_method_name = rng.choice(("token", "tls", "basic", "", values.text(rng)))
        connect.auth_data = rng.choice((b"", b"a.b.c", self._broken(rng).encode("latin-1")))
        if rng.random() < 0.5:
            connect.original_principal = rng.choice((SUPER_USER, values.text(rng)))

    def headers(self, rng: Random) -> dict[str, str]:
        if rng.random() >= STRANGE_LOGINS:
            return {"authorization": f"Bearer {self._token(rng)}"}
        return rng.choice((
            {},
            {"authorization": f"Bearer {self._broken(rng)}"},
            {"authorization": "Basic " + "=" * rng.randrange(9)},
            {"x-original-principal": SUPER_USER, "authorization": f"Bearer {self._token(rng)}"},
            {"x-pulsar-auth-method-name": "tls", "authorization": "Bearer"},
        ))  # fmt: skip

    def http(self, rng: Random, timeout: float) -> http.client.HTTPConnection:
        if rng.random() < 0.5:
            return super().http(rng, timeout)
        found = urlsplit(self._secured.info["webServiceUrlTls"])
        context = self._secured.context()
        return http.client.HTTPSConnection(
            found.hostname or "", found.port, timeout=timeout, context=context
        )

    def flight(self, rng: Random) -> fl.FlightClient:
        if rng.random() < 0.5:
            return super().flight(rng)
        arguments: Mapping[str, bytes] = self._secured.credentials().for_flight()
        return fl.connect(self._secured.info["flightUrlTls"], **arguments)

    def admin(self) -> AdminClient:
        return self._secured.admin()

    def friendly_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._tokens[SUPER_USER]}"}

    def witness_token(self) -> str:
        return self._tokens[WITNESS]

    def secrets(self) -> list[str]:
        return [part for found in self._tokens.values() for part in (found, found.split(".")[2])]

    def _token(self, rng: Random) -> str:
        return self._tokens[rng.choice(ROLES)]

    def _broken(self, rng: Random) -> str:
        """A token of a super user with one byte changed."""
        found = self._tokens[SUPER_USER]
        at = rng.randrange(len(found))
        return found[:at] + chr(rng.randrange(33, 127)) + found[at + 1 :]


def _plain_http(broker: Standalone, timeout: float) -> http.client.HTTPConnection:
    found = urlsplit(broker.web_url)
    return http.client.HTTPConnection(found.hostname or "", found.port or 80, timeout=timeout)
