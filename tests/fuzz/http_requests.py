"""Requests to every route of the admin API, with names, parameters and bodies at random.

What changes something is only asked of the namespace ``public/wild``: nothing that was published
elsewhere may go, because it is read back at the end.
"""

from __future__ import annotations

import http.client
import json
import re
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from tests.fuzz import values
from tests.fuzz.doors import Doors
from tests.fuzz.script import SUBSCRIPTIONS, TOPICS

WILD = "wild"
WILD_TOPICS = tuple(f"w{i}" for i in range(4))
TIMEOUT_SECONDS = 30.0
ENDING = frozenset({"/admin/v2/brokers/shutdown"})
"""Whoever may call it ends the broker, as it should be."""
_DESCRIPTION = "/admin/openapi.json"
_PARAMETER = re.compile(r"{(\w+)}")
_POLICIES = (
    "retention", "messageTTL", "persistence", "backlogQuota", "deduplication", "maxConsumers",
    "compactionThreshold", "delayedDelivery", "properties", "schemaCompatibilityStrategy",
    "autoTopicCreation", "inactiveTopicPolicies", "maxProducersPerTopic", "dispatchRate", "sealing",
)  # fmt: skip
_FIELDS = (
    "limit", "policy", "ledgerId", "entryId", "retentionTimeInMinutes", "retentionSizeInMB", "type",
    "schema", "properties", "topics", "first", "last", "a",
)  # fmt: skip


class HttpFuzz:
    """One route at random at a time; ``problems`` collects answers that must not be."""

    def __init__(self, doors: Doors, rng: Random) -> None:
        self.problems: list[str] = []
        self.requests = 0
        self._rng = rng
        self._doors = doors
        described = json.loads(self._call("GET", _DESCRIPTION, None, doors.friendly_headers())[1])
        self._routes = [
            (method.upper(), path)
            for path, methods in described["paths"].items()
            if path not in ENDING
            for method in methods
        ]
        self._query = sorted(
            {
                parameter["name"]
                for methods in described["paths"].values()
                for route in methods.values()
                for parameter in route.get("parameters", ())
                if parameter["in"] == "query"
            }
        )

    def one(self) -> None:
        """Send one request and look at its answer."""
        rng = self._rng
        if rng.random() < 0.05:
            method, path = "PUT", f"/admin/v2/namespaces/public/{WILD}"
        elif rng.random() < 0.05:
            method, path = "PUT", f"/admin/v2/persistent/public/{WILD}/{rng.choice(WILD_TOPICS)}"
        else:
            method, template = rng.choice(self._routes)
            path = _PARAMETER.sub(lambda m: quote(self._name(m[1], method), safe=""), template)
            if rng.random() < 0.3:
                names = rng.sample(self._query, k=min(len(self._query), 2))
                path += "?" + urlencode({name: self._word() for name in names})
        body, headers = self._body(method)
        headers |= self._doors.headers(rng)
        status, answer = self._call(method, path, body, headers)
        self.requests += 1
        if status >= 500 and status not in (501, 503):
            self.problems.append(f"{method} {path} {body!r:.200} -> {status} {answer[:300]!r}")

    def _call(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = self._doors.http(self._rng, TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError):
                self.problems.append(f"{method} {path}: no answer in {TIMEOUT_SECONDS:.0f} s")
            return 0, b""
        finally:
            connection.close()

    def _name(self, parameter: str, method: str) -> str:
        rng = self._rng
        safe = method == "GET"
        odd = rng.random() < 0.05
        match parameter:
            case "tenant":
                return "none" if odd else "public"
            case "namespace":
                return rng.choice(("default", "deduplicated", WILD)) if safe else WILD
            case "topic":
                if odd:
                    return values.text(rng)
                names = [name.rpartition("/")[2] for name in TOPICS]
                return rng.choice(names if safe else WILD_TOPICS)
            case "domain":
                return "non-persistent" if rng.random() < 0.1 else "persistent"
            case "subscription":
                return values.text(rng) if odd else rng.choice(SUBSCRIPTIONS)
            case "policy":
                return rng.choice(_POLICIES)
            case "bundle":
                return rng.choice(("0x00000000_0xffffffff", "0x00000000_0x40000000", "0x_"))
            case "cluster":
                return rng.choice(("standalone", "fuzz"))
            case _:
                return self._word()

    def _word(self) -> str:
        rng = self._rng
        if rng.random() < 0.5:
            return str(values.integer(rng, 64, rng.random() < 0.5))
        return rng.choice(("true", "false", "earliest", "latest", "cursors", values.text(rng)))

    def _body(self, method: str) -> tuple[bytes | None, dict[str, str]]:
        rng = self._rng
        if method == "GET" or rng.random() < 0.2:
            return None, {}
        chance = rng.random()
        if chance < 0.8:
            body = json.dumps(self._json(0)).encode()
        elif chance < 0.9:
            body = rng.choice((b"{", b"[" * 5000, b'{"a":1e999}', b'{"a":NaN}', b"\xff", b"null"))
        else:
            body = values.data(rng)
        kind = "application/json" if rng.random() < 0.9 else rng.choice(("text/plain", "a/b", ""))
        return body, {"Content-Type": kind}

    def _json(self, depth: int) -> Any:
        rng = self._rng
        kind = rng.randrange(8 if depth < 3 else 6)
        if kind < 2:
            return values.integer(rng, 64, True)
        if kind == 2:
            return rng.choice((True, False, None, 0.5, -1e300))
        if kind < 6:
            return values.text(rng)
        if kind == 6:
            return [self._json(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(_FIELDS): self._json(depth + 1) for _ in range(rng.randrange(5))}
