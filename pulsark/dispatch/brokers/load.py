"""A broker's report of its load, and what its bundles have to do with it. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLD_CHANGE = 0.1
"""The relative change of a figure that is worth a write."""


TOLD_PART = 0.03
"""The change of the part of a broker's time for a bundle that is worth a write."""
_BYTES_A_MESSAGE = 4096
"""The number of bytes that cost about as much as one message."""


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """What goes on in a bundle, of its topics that are loaded. Rates are per second."""

    topics: int = 0
    sessions: int = 0
    """Producers and consumers."""
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    @property
    def messages(self) -> float:
        """In both directions."""
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> float:
        """In both directions."""
        return self.bytes_in + self.bytes_out

    @property
    def weight(self) -> float:
        """About what it costs, in messages a second."""
        return self.messages + self.bytes / _BYTES_A_MESSAGE

    def plus(self, other: BundleLoad) -> BundleLoad:
        """Both together."""
        return BundleLoad(
            self.topics + other.topics,
            self.sessions + other.sessions,
            self.messages_in + other.messages_in,
            self.messages_out + other.messages_out,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
        )


def busiest(
    loads: Mapping[str, BundleLoad], utilisation: float, most: int
) -> tuple[tuple[str, float], ...]:
    """The busiest bundles of a broker, each with its part of the time for which that is busy."""
    weights = {bundle: load.weight for bundle, load in loads.items()}
    total = sum(weights.values())
    found = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:most]
    return tuple((bundle, utilisation * weight / total) for bundle, weight in found if weight > 0)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The load of one broker. Rates are per second."""

    utilisation: float = 0.0
    """The share of time for which its event loop, the only one, is busy."""
    bundles: int = 0
    topics: int = 0
    """Loaded topics."""
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    busiest: tuple[tuple[str, float], ...] = ()
    """Some of its bundles, and what each has of the utilisation, the busiest one first."""

    def differs_from(self, told: LoadReport) -> bool:
        """Whether brokers that know ``told`` should get this report."""
        if (self.bundles, self.topics == 0) != (told.bundles, told.topics == 0):
            return True
        if abs(self.utilisation - told.utilisation) >= TOLD_CHANGE:
            return True
        parts, known = dict(self.busiest), dict(told.busiest)
        if any(
            abs(parts.get(bundle, 0.0) - known.get(bundle, 0.0)) >= TOLD_PART
            for bundle in parts.keys() | known.keys()
        ):
            return True
        return any(
            abs(now - then) > TOLD_CHANGE * max(now, then, 10.0)
            for now, then in zip(self._counted(), told._counted(), strict=True)
        )

    def _counted(self) -> tuple[float, ...]:
        return self.topics, self.messages_in, self.messages_out, self.bytes_in, self.bytes_out

    def as_json(self) -> dict[str, Any]:
        """The form in the metadata store."""
        told = {name: figure for name, figure in asdict(self).items() if name != "busiest"}
        parts = {bundle: round(part, 3) for bundle, part in self.busiest}
        return {**{name: round(figure, 3) for name, figure in told.items()}, "busiest": parts}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> LoadReport:
        """The inverse of ``as_json``. Missing figures are 0, unknown ones are ignored; of what is
        no load at all nothing is taken: its broker lives."""
        try:
            found: dict[str, Any] = {
                one.name: int(told[one.name]) if one.type == "int" else float(told[one.name])
                for one in fields(cls)
                if one.name in told and one.name != "busiest"
            }
            parts = {str(name): float(part) for name, part in told.get("busiest", {}).items()}
        except (AttributeError, OverflowError, TypeError, ValueError):
            return cls()
        if not all(map(math.isfinite, (*found.values(), *parts.values()))):
            return cls()
        return cls(**found, busiest=tuple(parts.items()))
