"""What locks cost: ``python -m benchmarks.security authorization|logins|failed-logins``.

``authorization`` publishes with the Java client to a broker with token logins and authorization,
and to one without, alternately: the ratio of the rates. ``logins`` counts logins by token on fresh
connections for each second of the broker's processor time, and as information those over HTTP.
``failed-logins`` publishes single messages while a process floods the broker with logins that
fail, and while none does: the ratio of the 99th percentiles. ``--check`` exits 1 if a number
misses its threshold.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import Broker, Pulsark, alone
from benchmarks.credentials import Algorithm, Signer, forged
from benchmarks.fairness import (
    START_SECONDS,
    Command,
    Pings,
    Waits,
    a_producer,
    beside,
    connect,
    frames,
    sent,
    started,
)
from benchmarks.goals import Goal, add_check, add_scenarios, exit_code
from benchmarks.load import LoadClient
from benchmarks.usage import processor_seconds
from pulsark.admin_client.client import AdminClient
from pulsark.admin_client.credentials import Credentials
from pulsark.security.limits import FAILED_LOGIN_DELAY_SECONDS

RATE_RATIO = 0.97
LOGINS_A_SECOND = 1000
P99_RATIO = 2.0
AT_ONCE = 100
"""Connections that are opened together; a wave waits for its slowest one."""
TOPIC = "persistent://public/default/locked"
KINDS: dict[str, dict[str, object]] = {
    "batched": {"batching": True, "pending": 0, "size": 1024},
    "unbatched": {"batching": False, "pending": 1000, "size": 1024},
}


@contextmanager
def locked(home: Path, algorithm: Algorithm = "HS256") -> Iterator[tuple[Pulsark, Signer]]:
    """A broker that lets nobody in without a token, and in which the kitchen may publish."""
    home.mkdir()
    signer = Signer(home, algorithm)
    broker = Pulsark(home / "broker", **signer.settings)
    admin = signer.token("admin")
    api = AdminClient(
        broker.admin_url,
        START_SECONDS,
        known=True,
        credentials=Credentials.of("token", f"token:{admin}"),
    )
    try:
        started(broker, admin)
        granted = ["produce", "consume"]
        api.call("POST", "/namespaces/public/default/permissions/kitchen", granted)
        yield broker, signer
        broker.check()
    finally:
        broker.stop()


# -- publishing ---


def authorization(chosen: argparse.Namespace, home: Path) -> list[Goal]:
    """Messages a second where everything is locked, over those where nothing is."""
    load = LoadClient()
    plain = Pulsark(home / "open")
    try:
        started(plain)
        with locked(home / "locked") as (broker, signer):
            sides: dict[str, tuple[Broker, dict[str, str]]] = {
                "on": (broker, {"url": broker.url, "token": signer.token("kitchen")}),
                "off": (plain, {"url": plain.url}),
            }
            return [_ratio_of_rates(load, sides, kind, chosen) for kind in KINDS]
    finally:
        plain.stop()
        load.close()


def _ratio_of_rates(
    load: LoadClient,
    sides: dict[str, tuple[Broker, dict[str, str]]],
    kind: str,
    chosen: argparse.Namespace,
) -> Goal:
    """Each round has a ratio of its own, so that a slow minute of the machine does not count."""
    brokers = [broker for broker, _ in sides.values()]
    ratios: list[float] = []
    for number in range(-chosen.warm_up, chosen.rounds):
        rates = {}
        for name in ("on", "off") if number % 2 == 0 else ("off", "on"):
            broker, where = sides[name]
            topic = f"{TOPIC}-{kind}-{number}"
            os.sync()
            with alone(broker, brokers):
                answer = load.call(
                    "publish", topic=topic, seconds=chosen.seconds, **where, **KINDS[kind]
                )
            rates[name] = answer["messages"] / answer["seconds"]
        if number >= 0:
            ratios.append(rates["on"] / rates["off"])
            print(f"{kind}: {rates['on']:,.0f} messages/s locked, {rates['off']:,.0f} open")
    label = f"publish {kind}, authorization on / off"
    return Goal(label, statistics.median(ratios), "at least", RATE_RATIO)


# -- logins ---


def logins(chosen: argparse.Namespace, home: Path) -> list[Goal]:
    """Logins by token for each second that the broker has a processor."""
    goals = []
    algorithms: tuple[Algorithm, ...] = ("HS256", "RS256")
    for algorithm in algorithms:
        with locked(home / algorithm, algorithm) as (broker, signer):
            token = signer.token("kitchen")
            frame = frames(connect(token))
            for name, work in (
                ("the binary port", lambda end, frame=frame: log_in(broker.port, frame, end)),
                ("HTTP", lambda end, token=token: request(broker.web_port, token, end)),
            ):
                rate, rate_of_core = _rates(broker, work, chosen.seconds)
                print(
                    f"{algorithm}, {name}: {rate:,.0f} logins/s, {rate_of_core:,.0f} for each "
                    "second of the broker's processor time"
                )
                if name != "HTTP":
                    label = f"logins by token a second of a core, {algorithm}"
                    goals.append(Goal(label, rate_of_core, "at least", LOGINS_A_SECOND))
    return goals


def _rates(broker: Broker, work: Callable[[float], int], seconds: float) -> tuple[float, float]:
    """Those of a second, and of a second of the broker's processor time."""
    work(time.monotonic() + seconds / 5)  # the first ones load modules
    used, begun = processor_seconds(broker.pid), time.monotonic()
    count = work(begun + seconds)
    used, took = processor_seconds(broker.pid) - used, time.monotonic() - begun
    return count / took, count / used


def log_in(port: int, frame: bytes, end: float) -> int:
    """Log in on fresh connections until a time; how often."""
    count = 0
    while time.monotonic() < end:
        wave = [_opened(port, frame) for _ in range(AT_ONCE)]
        for each in wave:
            with each:
                if not _is_connected(each.recv(4096)):
                    raise RuntimeError("a login was refused")
        count += AT_ONCE
    return count


def _opened(port: int, frame: bytes) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=60)
    opened.sendall(frame)
    return opened


def _is_connected(answer: bytes) -> bool:
    return Command.FromString(answer[8:]).type == Command.CONNECTED if answer else False


def request(port: int, token: str, end: float) -> int:
    """Send requests with a token on one connection until a time; how often."""
    count = 0
    headers = {"Authorization": f"Bearer {token}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        while time.monotonic() < end:
            connection.request("GET", "/admin/v2/persistent/public/default", headers=headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                raise RuntimeError(f"HTTP {answer.status}")
            count += 1
    return count


# -- failed logins ---


def failed_logins(chosen: argparse.Namespace, home: Path) -> list[Goal]:
    """How long others wait for receipts during a flood of failed logins, over how long else."""
    found: dict[str, list[float]] = {"calm": [], "flood": []}
    with locked(home / "flooded") as (broker, signer):
        token = signer.token("kitchen")
        others = Publisher(broker.port, token)
        others.run(chosen.seconds / 5)
        flood = (broker.port, frames(connect(forged(token))))
        for number in range(chosen.rounds):
            for name in ("calm", "flood") if number % 2 == 0 else ("flood", "calm"):
                before, begun = failures(broker), time.monotonic()
                with beside(fail, *flood) if name == "flood" else contextlib.nullcontext():
                    waits = others.waits(chosen.seconds)
                rate = (failures(broker) - before) / (time.monotonic() - begun)
                print(f"{name}: {_shown(waits)}, {rate:,.0f} failed logins/s")
                found[name] += waits
                drained(broker)
    for name, waits in found.items():
        print(f"{name}, all rounds: {_shown(waits)}")
    ratio = Waits.of(found["flood"]).p99 / Waits.of(found["calm"]).p99
    return [Goal("others' publish p99, failed logins / none", ratio, "at most", P99_RATIO)]


def drained(broker: Pulsark) -> None:
    """Return once the broker has refused all who had come, and told them so."""
    before = -1.0
    while (now := failures(broker)) > before:
        before = now
        time.sleep(FAILED_LOGIN_DELAY_SECONDS + 0.5)


def _shown(seconds: list[float]) -> str:
    waits = Waits.of(seconds)
    return (
        f"p50 {1e3 * waits.median:.2f} ms, p99 {1e3 * waits.p99:.2f} ms, "
        f"longest {1e3 * waits.longest:.1f} ms"
    )


def failures(broker: Pulsark) -> float:
    """How many logins the broker has refused so far."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("pulsar_authentication_failures_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counted)


class Publisher(Pings):
    """An innocent client that publishes one message at a time."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(port, token)
        a_producer(self._client)

    def _ask(self) -> None:
        self._client.socket.sendall(sent(1024))
        self._client.take(Command.SEND_RECEIPT)


def fail(port: int, frame: bytes, ready) -> None:  # type: ignore[no-untyped-def]
    """Fail to log in as often as possible, without waiting for answers, which are late."""
    ready.set()
    while True:
        with contextlib.suppress(OSError):  # the broker does not keep up
            for opened in [_opened(port, frame) for _ in range(AT_ONCE)]:
                opened.close()


SCENARIOS: dict[str, Callable[[argparse.Namespace, Path], list[Goal]]] = {
    "authorization": authorization,
    "logins": logins,
    "failed-logins": failed_logins,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    add_scenarios(parser, SCENARIOS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before those of publishing")
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-security-") as home:
        goals = [goal for name in chosen.scenarios for goal in SCENARIOS[name](chosen, Path(home))]
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
