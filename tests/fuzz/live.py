"""Hostile clients against a live broker, and what must be true when they have gone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pulsark.storage.table.read_ahead import KEPT_SECONDS
from tests.fuzz import aftermath
from tests.fuzz.beside import Beside
from tests.fuzz.connection import HostileConnection, turn
from tests.fuzz.doors import Doors, SecuredDoors
from tests.fuzz.flight_tickets import FlightFuzz
from tests.fuzz.http_requests import WILD, HttpFuzz
from tests.fuzz.script import Position
from tests.fuzz.witness import Witness
from tests.support.secured import Secured
from tests.support.standalone import Standalone

CONNECTIONS = 6
"""Hostile connections at a time."""

FRAMES_A_CONNECTION = (1, 5, 50, 200, 1000)
FRAMES_A_REQUEST = 100
"""After so many frames there is one request over HTTP and one over Flight."""

WARM_UP_FRAMES = 3000
GROWTH_BYTES_MAX = 64 << 20
"""A broker with work behind it has more than a new one: 16 MiB are the cache of ``SETTINGS``, some
are objects of topics and free memory in between."""
SETTLE_SECONDS = 60.0
UNCHANGED_SECONDS = 2 * KEPT_SECONDS + 5
"""So long the memory must not shrink, to count: by then what only readers need is forgotten."""
SETTINGS = (
    "acknowledgmentAtBatchIndexLevelEnabled=true",
    "brokerDeleteInactiveTopicsEnabled=false",
    "managedLedgerCacheSizeMB=16",
    "sealFreshnessSeconds=10",
)  # fmt: skip

EAGER = {
    # Memory that is free in another arena than the first stays with the process, some megabytes
    # for each thread that once had a large buffer: that is no leak, and no client adds to it.
    "MALLOC_ARENA_MAX": "1",
    "PULSARK_TEST_MAIN": "-m tests.fuzz.eager_collection",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}


@dataclass
class Findings:
    """What a run found. ``problems`` is empty when all is well."""

    seed: int
    frames: int = 0
    connections: int = 0
    requests: int = 0
    calls: int = 0
    confirmed: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    ping_ms: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(vars(self))


class LiveFuzz:
    """A standalone of its own below ``folder``, and hostile clients made from ``seed``."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        say: Callable[[str], None] = lambda _: None,
        *,
        secured: bool = False,
    ) -> None:
        """``secured``: with TLS, logins and rights, beside clients that have none of it."""
        self._folder = folder
        self._seed = seed
        self._say = say
        self._secured = secured
        self._rng = Random(seed)
        self._confirmed: dict[Position, set[int]] = {}
        self.findings = Findings(seed)

    def run(
        self, frames: int, seconds: float = float("inf"), ping_p99_ms: float = 50.0
    ) -> Findings:
        """Send so many frames, or for so long, whichever ends first."""
        found = self.findings
        settings = [word for item in SETTINGS for word in ("--set", item)]
        broker: Standalone
        if self._secured:
            broker = Secured(self._folder, *settings, env=EAGER)
        else:
            broker = Standalone(self._folder / "data", *settings, env=EAGER)
        with broker:
            doors = SecuredDoors(broker) if isinstance(broker, Secured) else Doors(broker)
            self._prepare(doors)
            http = HttpFuzz(doors, Random(self._rng.random()))
            flight = FlightFuzz(broker.flight_url, doors, Random(self._rng.random()))
            self._flood(doors, http, flight, WARM_UP_FRAMES, float("inf"))
            start = self._settled(broker.pid, 5)
            begun = time.monotonic()
            with Witness(broker.broker_port, doors.witness_token()) as witness:
                self._flood(doors, http, flight, frames, begun + seconds)
            found.seconds = round(time.monotonic() - begun, 1)
            found.ping_ms = witness.found
            if witness.found["p99"] > ping_p99_ms:
                found.problems.append(
                    f"others waited {witness.found['p99']:.0f} ms for a PING (p99), "
                    f"{ping_p99_ms:.0f} are allowed"
                )
            enough = start + GROWTH_BYTES_MAX
            found.grown_bytes = self._settled(broker.pid, UNCHANGED_SECONDS, enough) - start
            if found.grown_bytes > GROWTH_BYTES_MAX:
                found.problems.append(f"the process has grown by {found.grown_bytes >> 20} MiB")
            found.requests, found.calls = http.requests, flight.calls
            found.problems += http.problems[: aftermath.SHOWN]
            found.problems += flight.problems[: aftermath.SHOWN]
            flight.close()
            self._look_at_what_is_left(broker, doors)
        found.problems += aftermath.log_lines(broker.log_path, doors.secrets())
        return found

    def _prepare(self, doors: Doors) -> None:
        admin = doors.admin()
        admin.call("PUT", "/namespaces/public/deduplicated", {
            "deduplicationEnabled": True,
            "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        })  # fmt: skip
        admin.call("PUT", f"/namespaces/public/{WILD}")
        for namespace in ("default", "deduplicated"):
            admin.call("PUT", f"/persistent/public/{namespace}/parts/partitions", 2)
        if isinstance(doors, SecuredDoors):
            doors.prepare()

    def _flood(
        self, doors: Doors, http: HttpFuzz, flight: FlightFuzz, frames: int, until: float
    ) -> None:
        found = self.findings
        connections: list[HostileConnection] = []
        made = asked = told = 0
        requests, calls = Beside(http.one), Beside(flight.one)
        while made < frames and time.monotonic() < until:
            connections = [c for c in connections if not self._ended(c)]
            while len(connections) < CONNECTIONS:
                wanted = self._rng.choice(FRAMES_A_CONNECTION)
                own = Random(self._rng.random())
                connections.append(HostileConnection(doors, own, wanted))
                found.connections += 1
            more, confirmed = turn(connections, 0.05)
            made += more
            for position, data in confirmed:
                self._confirmed.setdefault(position, set()).add(aftermath.sum_of(data))
            while asked < made // FRAMES_A_REQUEST:
                asked += 1
                requests.ask()
                calls.ask()
            if made - told >= 100_000:
                told = made
                self._say(f"{made:,} frames, {len(self._confirmed):,} entries confirmed")
        for connection in connections:
            connection.hang_up()
        requests.finish()
        calls.finish()
        found.frames += made

    def _ended(self, connection: HostileConnection) -> bool:
        """Hang up when everything is written, and most often before everything is answered."""
        if connection.closed or (not connection.wants_to_write and self._rng.random() < 0.3):
            connection.hang_up()
        return connection.closed

    def _settled(self, pid: int, unchanged_seconds: float, enough: int = 0) -> int:
        """The memory of the process when it does not shrink any more, or is small enough."""
        deadline = time.monotonic() + SETTLE_SECONDS
        lowest = aftermath.resident_bytes(pid)
        since = time.monotonic()
        while lowest > enough and time.monotonic() < min(deadline, since + unchanged_seconds):
            os.kill(pid, signal.SIGUSR1)
            time.sleep(1)
            now = aftermath.resident_bytes(pid)
            if now < lowest - (1 << 20):
                lowest, since = now, time.monotonic()
        return lowest

    def _look_at_what_is_left(self, broker: Standalone, doors: Doors) -> None:
        problems, admin = self.findings.problems, doors.admin()
        headers = doors.friendly_headers()
        self.findings.confirmed = len(self._confirmed)
        problems += aftermath.left_behind(admin)
        topics = aftermath.all_topics(admin)
        before = aftermath.read_all(broker.flight_url, topics, headers)
        problems += aftermath.lost(self._confirmed, before)
        self._say(f"{len(before):,} entries are there; they are being sealed")
        problems += aftermath.not_sealed(admin, topics)
        problems += aftermath.changed(
            before, aftermath.read_all(broker.flight_url, topics, headers)
        )
        broker.kill()
        broker.start()
        problems += aftermath.changed(
            before, aftermath.read_all(broker.flight_url, topics, headers)
        )
