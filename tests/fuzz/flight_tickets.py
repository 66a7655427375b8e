"""Tickets and descriptors at random for Arrow Flight, and bytes that are no HTTP/2."""

from __future__ import annotations

import json
import socket
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from tests.fuzz import values
from tests.fuzz.doors import Doors
from tests.fuzz.script import ODD_TOPICS, TOPICS

TIMEOUT_SECONDS = 30.0
ROWS_MAX = 50_000


class FlightFuzz:
    """One call at a time; ``problems`` collects what must not be."""

    def __init__(self, url: str, doors: Doors, rng: Random) -> None:
        self.problems: list[str] = []
        self.calls = 0
        self._rng = rng
        self._url = url
        self._doors = doors
        self._clients = [doors.flight(rng) for _ in range(4)]

    def one(self) -> None:
        """One call, or some bytes on a socket."""
        self.calls += 1
        if self._rng.random() < 0.2:
            self._bytes()
            return
        client = self._rng.choice(self._clients)
        headers = [(k.encode(), v.encode()) for k, v in self._doors.headers(self._rng).items()]
        options = fl.FlightCallOptions(timeout=TIMEOUT_SECONDS, headers=headers)
        asked: Any = b""
        try:
            if self._rng.random() < 0.2:
                asked = self._topic()
                client.get_flight_info(
                    fl.FlightDescriptor.for_path(asked.encode("utf-8", "replace")), options
                )
            else:
                asked = self._ticket()
                for chunk in client.do_get(fl.Ticket(asked), options):
                    if chunk.data.num_rows > ROWS_MAX:
                        self.problems.append(
                            f"{asked!r:.300} -> {chunk.data.num_rows} rows at once"
                        )
        except fl.FlightTimedOutError:
            self.problems.append(f"{asked!r:.300} -> no answer in {TIMEOUT_SECONDS:.0f} s")
        except fl.FlightInternalError as error:
            self.problems.append(f"{asked!r:.300} -> {str(error)[:300]}")
        except (pa.ArrowException, KeyError, OSError):
            return  # refused, as it should be

    def close(self) -> None:
        """Hang up."""
        for client in self._clients:
            client.close()

    def _bytes(self) -> None:
        parts = urlsplit(self._url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5) as plain:
            preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if self._rng.random() < 0.5 else b""
            plain.sendall(preface + values.data(self._rng))

    def _topic(self) -> str:
        return self._rng.choice(ODD_TOPICS if self._rng.random() < 0.2 else TOPICS)

    def _ticket(self) -> bytes:
        rng = self._rng
        chance = rng.random()
        if chance < 0.1:
            return values.data(rng)
        if chance < 0.15:
            return rng.choice((b"[" * 9000, b'{"topic":' * 2000, b"{}", b"null", b"[]"))
        ticket: dict[str, Any] = {
            "topic": self._topic(),
            "topicId": "",
            "first": [0, 0],
            "last": [2**63 - 1, 2**63 - 1] if rng.random() < 0.2 else [rng.randrange(40), 50],
        }
        if rng.random() < 0.3:
            name = rng.choice(list(ticket))
            ticket[name] = rng.choice(
                (None, [], [1], "x", 7, {}, [values.integer(rng, 64, True)] * 2, [0.5, 1])
            )
        if rng.random() < 0.1:
            ticket["compacted"] = rng.choice((True, 1))
        return json.dumps(ticket).encode()
