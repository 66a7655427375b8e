"""Consumers as a subscription type sees them: a name, permits, and nothing behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class FakeConsumer:
    """``permits`` is all the room it has."""

    name: str
    priority: int = 0
    permits: int = 1
    key_ranges: tuple[tuple[int, int], ...] = ()

    def can_receive(self) -> bool:
        return self.permits > 0

    def can_continue(self) -> bool:
        return True


def take(type_: Any, *entries: Any) -> list[str]:
    """Names of the consumers that take entries, each costing one permit; "-" if one waits."""
    names = []
    for entry in entries:
        consumer = type_.choose(entry)
        if consumer is None:
            names.append("-")
        else:
            consumer.permits -= 1
            names.append(consumer.name)
    return names
