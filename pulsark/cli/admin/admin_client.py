"""Calls to the admin API, with the standard library only."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from pulsark.cli.terminal.errors import CommandError

TIMEOUT_SECONDS = 30.0


class AdminClient:
    """One broker's admin API; failures are ``CommandError`` with the broker's reason."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(f"--admin-url {url}: write http://HOST:PORT")
        self._parts = parts

    def get(self, path: str) -> Any:
        """The JSON at a path below ``/admin/v2``; ``None`` if it is empty."""
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call a path below ``/admin/v2``."""
        status, answer = self._request(method, f"/admin/v2{path}", body)
        if 200 <= status < 300:
            return json.loads(answer) if answer else None
        try:
            reason = json.loads(answer)["reason"]
        except (ValueError, KeyError, TypeError):
            reason = answer[:200].decode("utf-8", "replace")
        raise CommandError(f"{self._url} answered {status}: {reason}")

    def _request(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        try:
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_SECONDS)
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {} if body is None else {"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CommandError(
                f"no answer from the admin API at {self._url} ({error}); is the broker running?"
            ) from error


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")
