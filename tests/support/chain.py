"""What went into a chain of topics and what came out of it, compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Row(NamedTuple):
    """A message of a producer."""

    producer: str
    sequence: int
    key: str

    def encode(self) -> bytes:
        """As a payload."""
        return f"{self.producer}:{self.sequence}:{self.key}".encode()

    @classmethod
    def parse(cls, payload: bytes) -> Row:
        """From a payload."""
        producer, sequence, key = payload.decode().split(":")
        return cls(producer, int(sequence), key)


def differences(sent: Mapping[str, int], logs: Mapping[str, Iterable[Row]]) -> list[str]:
    """Where the logs are not what was sent, or not like each other; empty if all is well.

    ``sent`` has the number of messages of each producer. Each log has every message once, those of
    a key in the order in which they are in all other logs, and those of a producer and a key in
    the order of sending.
    """
    wanted = {(name, sequence) for name, count in sent.items() for sequence in range(count)}
    found: list[str] = []
    orders: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for name, log in logs.items():
        rows = list(log)
        counts = Counter((row.producer, row.sequence) for row in rows)
        found += _some(f"{name} lacks", wanted - counts.keys())
        found += _some(f"{name} has what nobody sent", counts.keys() - wanted)
        found += _some(f"{name} has more than once", {row for row in counts if counts[row] > 1})
        by_key: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for row in rows:
            by_key[row.key].append((row.producer, row.sequence))
        orders[name] = by_key
        for key, places in by_key.items():
            for producer in sent:
                mine = [sequence for whose, sequence in places if whose == producer]
                if mine != sorted(mine):
                    found.append(f"{name}: {key} of {producer} is out of order")
    (first, order), *others = orders.items()
    for name, other in others:
        keys = {key for key in order.keys() | other.keys() if order.get(key) != other.get(key)}
        found += _some(f"{name} has another order than {first}", keys)
    return found


def _some(what: str, rows: Iterable[object]) -> list[str]:
    shown = sorted(rows, key=repr)
    return [f"{what}: {len(shown)}, {shown[:3]}"] if shown else []
