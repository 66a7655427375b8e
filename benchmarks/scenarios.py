"""What is measured: each scenario is one command to the load client, and what its answer means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a scenario's answer. ``threshold`` bounds the ratio Pulsark / Pulsar.

    ``secondary``: another number of the same runs as the measure before it.
    """

    label: str
    unit: str
    better: Better
    value: Callable[[dict[str, float]], float]
    threshold: float | None = None
    secondary: bool = False

    def holds(self, ratio: float) -> bool:
        """Whether the ratio meets the threshold."""
        if self.threshold is None:
            return True
        return ratio >= self.threshold if self.better == "higher" else ratio <= self.threshold

    def against_before(self) -> Measure:
        """The same measure beside an earlier commit: at most 3 % worse."""
        return replace(self, threshold=0.97 if self.better == "higher" else 1 / 0.97)

    @property
    def needed(self) -> str:
        if self.threshold is None:
            return ""
        return f"{'>=' if self.better == 'higher' else '<='} {self.threshold:.2f}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load on a running broker.

    ``prepare`` runs once a broker, before the warm-up; ``quick`` overrides ``options``. With
    ``tls`` the client comes over TLS, to the same processes.
    """

    name: str
    command: str
    options: dict[str, object]
    measures: tuple[Measure, ...]
    quick: dict[str, object]
    prepare: str | None = None
    subscription: bool = False
    tls: bool = False


def _rate(answer: dict[str, float]) -> float:
    return answer["messages"] / answer["seconds"] / 1e3


def _milliseconds(key: str) -> Callable[[dict[str, float]], float]:
    return lambda answer: answer[key] * 1e3


def _per_message(key: str) -> Callable[[dict[str, float]], float]:
    return lambda answer: answer[key] / answer["messages"] * 1e6


def _publish(
    name: str,
    label: str,
    *,
    batching: bool,
    size: int,
    pending: int,
    threshold: float | None,
    tls: bool = False,
) -> Scenario:
    """``pending`` messages may be unacknowledged; 0 leaves it to the client's 64 MB."""
    return Scenario(
        name,
        "publish",
        {"batching": batching, "pending": pending, "size": size, "seconds": 2.0},
        (Measure(label, "k/s", "higher", _rate, threshold),),
        {"seconds": 1.0},
        tls=tls,
    )


def _lone(name: str, label: str, *, threshold: float = 0.7, tls: bool = False) -> Scenario:
    """One message at a time."""
    return Scenario(
        name,
        "lone",
        {"size": 1024, "count": 1000},
        (
            Measure(f"{label}, p50", "ms", "lower", _milliseconds("p50"), threshold),
            Measure(f"{label}, p99", "ms", "lower", _milliseconds("p99"), secondary=True),
        ),
        {"count": 300},
        tls=tls,
    )


def _deliver(
    name: str,
    label: str,
    threshold: float,
    *,
    kind: str,
    subscriptions: int,
    consumers: int,
    keys: int,
    count: int,
) -> Scenario:
    """Deliveries of 1 KiB a second, to consumers that wait while a producer publishes."""
    options = {
        "type": kind,
        "subscriptions": subscriptions,
        "consumers": consumers,
        "keys": keys,
        "size": 1024,
        "count": count,
    }
    measure = Measure(label, "k/s", "higher", _rate, threshold)
    return Scenario(name, "deliver", options, (measure,), {"count": count // 4})


OUTSTANDING = 1000
"""The queue that the official C++, Python and Go clients have unless told otherwise."""

# Of small messages in batches without such a bound, the client alone takes more than a core and
# a half: that row shows the client, whichever broker it talks to, and so has no threshold.
SCENARIOS = (
    _publish(
        "batched-1k", "publish batched, 1 KiB", batching=True, size=1024, pending=0, threshold=1.2
    ),
    _publish(
        "batched-100",
        "publish batched, 100 B",
        batching=True,
        size=100,
        pending=OUTSTANDING,
        threshold=1.2,
    ),
    _publish(
        "batched-100-flood",
        "same, no bound",
        batching=True,
        size=100,
        pending=0,
        threshold=None,
    ),
    _publish(
        "unbatched",
        "publish unbatched, 1 KiB",
        batching=False,
        size=1024,
        pending=OUTSTANDING,
        threshold=1.2,
    ),
    _lone("lone", "lone publish"),
    Scenario(
        "endtoend",
        "endtoend",
        {"size": 1024, "count": 1000, "rate": 500.0},
        (
            Measure("end to end, p50", "ms", "lower", _milliseconds("p50")),
            Measure("end to end, p99", "ms", "lower", _milliseconds("p99"), secondary=True),
        ),
        {"count": 300},
    ),
    Scenario(
        "catchup",
        "catchup",
        {"count": 300_000},
        (Measure("catch-up read, 1 KiB", "k/s", "higher", _rate),),
        {"count": 100_000},
        prepare="backlog",
        subscription=True,
    ),
    _deliver(
        "fan-out",
        "fan-out, 100 subs",
        1.0,
        kind="Exclusive",
        subscriptions=100,
        consumers=1,
        keys=0,
        count=8_000,
    ),
    _deliver(
        "shared",
        "Shared, 50 cons.",
        1.0,
        kind="Shared",
        subscriptions=1,
        consumers=50,
        keys=0,
        count=200_000,
    ),
    _deliver(
        "key-shared",
        "Key_Shared, 50 cons.",
        0.8,
        kind="Key_Shared",
        subscriptions=1,
        consumers=50,
        keys=10_000,
        count=100_000,
    ),
    _publish(
        "tls-batched-1k",
        "TLS batched, 1 KiB",
        batching=True,
        size=1024,
        pending=0,
        threshold=1.0,
        tls=True,
    ),
    _lone("tls-lone", "TLS lone publish", tls=True),
)

V5_SCENARIOS = (
    _publish(
        "v5-batched-1k", "V5 batched, 1 KiB", batching=True, size=1024, pending=0, threshold=1.2
    ),
    _publish(
        "v5-unbatched",
        "V5 unbatched, 1 KiB",
        batching=False,
        size=1024,
        pending=OUTSTANDING,
        threshold=1.2,
    ),
)
"""Of Pulsar 5's client, beside its own broker."""


def _with_processors(scenario: Scenario) -> Scenario:
    """Also what a message costs the brokers of a side, and the bookies beside them."""
    spent = [
        Measure(f"  CPU a message, {who}", "us", "lower", _per_message(key), secondary=True)
        for who, key in (("brokers", "broker_seconds"), ("bookies", "bookie_seconds"))
    ]
    return replace(scenario, measures=(*scenario.measures, *spent))


# Lone messages first: what was published before is sealed for a while, which would delay them.
CLUSTER_SCENARIOS = (
    _lone("cluster-lone", "cluster lone", threshold=1.1),
    _with_processors(
        _publish(
            "cluster-batched-1k",
            "cluster batched, 1 KiB",
            batching=True,
            size=1024,
            pending=0,
            threshold=1.0,
        )
    ),
    _with_processors(
        _publish(
            "cluster-unbatched",
            "cluster unbatched",
            batching=False,
            size=1024,
            pending=OUTSTANDING,
            threshold=1.0,
        )
    ),
)
"""Of two brokers on each side, over the same three bookies. Decision 039 has what they can win."""

START = (
    Measure("start to first ack", "s", "lower", lambda answer: answer["first"], 0.3),
    Measure("idle memory", "MB", "lower", lambda answer: answer["memory"] / 1e6, 0.15),
)
"""Measured on fresh processes, not by the load client alone."""

NAMES = ("start", *(scenario.name for scenario in SCENARIOS))
CLUSTER_NAMES = tuple(scenario.name for scenario in CLUSTER_SCENARIOS)
V5_NAMES = tuple(scenario.name for scenario in V5_SCENARIOS)
