"""An issuer of OpenID Connect on this machine: clients show a secret and get a token that is short.

It also hands out tokens signed by a secret, as a service of a company's own would.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import RSAAlgorithm

from tests.support.logging_in import SECRET, rsa_key

AUDIENCE = "urn:pulsark:test"
_KEY_ID = "the-only-one"


@dataclass
class Issuer:
    """Who gets tokens, and how many they got."""

    secrets: Mapping[str, str]
    """That of each client, whose name becomes the role."""
    seconds: Mapping[str, int]
    """For how long a client's tokens are good."""
    url: str = ""
    key: RSAPrivateKey = field(default_factory=rsa_key)
    issued: Counter[str] = field(default_factory=Counter)
    """By the name that the client gave for its work: its scope, or what it asked for."""

    def configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint": f"{self.url}/token",
        }

    def keys(self) -> dict[str, Any]:
        public = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": _KEY_ID, "use": "sig", "alg": "RS256"}]}

    def exchange(self, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """The answer to a client that shows its secret."""
        client = form.get("client_id", "")
        if form.get("grant_type") != "client_credentials" or form.get("audience") != AUDIENCE:
            return 400, {"error": "invalid_request"}
        if not client or self.secrets.get(client) != form.get("client_secret"):
            return 401, {"error": "invalid_client", "error_description": "a wrong secret"}
        self.issued[form.get("scope", "").strip()] += 1
        # As issuers do: whole seconds in the token, and for the client a time from now on.
        now, seconds = int(time.time()), self.seconds[client]
        claims = {
            "iss": self.url,
            "sub": client,
            "aud": AUDIENCE,
            "iat": now,
            "nbf": now,
            "exp": now + seconds,
        }
        token = jwt.encode(claims, self.key, "RS256", {"kid": _KEY_ID})
        return 200, {"access_token": token, "expires_in": seconds, "token_type": "Bearer"}

    def signed(self, purpose: str, role: str, seconds: float) -> str:
        """A token signed by the secret."""
        self.issued[purpose] += 1
        return jwt.encode({"sub": role, "exp": time.time() + seconds}, SECRET, "HS256")


@contextmanager
def serving(issuer: Issuer) -> Iterator[Issuer]:
    """The issuer, behind a port while this lasts.

    ``GET /signed/ROLE/SECONDS/PURPOSE`` is answered with a token signed by the secret.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            match self.path.strip("/").split("/"):
                case [".well-known", "openid-configuration"]:
                    self._answer(200, issuer.configuration())
                case ["keys"]:
                    self._answer(200, issuer.keys())
                case ["signed", role, seconds, purpose]:
                    self._send(200, issuer.signed(purpose, role, float(seconds)))
                case _:
                    self._answer(404, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(*issuer.exchange(form))

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            self._send(status, json.dumps(body))

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
