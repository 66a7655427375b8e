"""How busy a broker is, as it tells the others. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLD_CHANGE = 0.1
"""A part by which a figure has to differ before it is worth a write."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Figures of one broker. Rates are per second."""

    utilisation: float = 0.0
    """The part of the time for which its event loop is busy: one loop is what a broker has."""
    bundles: int = 0
    topics: int = 0
    """Those that are loaded."""
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def differs_from(self, told: LoadReport) -> bool:
        """Whether others should hear of it, who know ``told``."""
        if (self.bundles, self.topics == 0) != (told.bundles, told.topics == 0):
            return True
        if abs(self.utilisation - told.utilisation) >= TOLD_CHANGE:
            return True
        return any(
            abs(now - then) > TOLD_CHANGE * max(now, then, 10.0)
            for now, then in zip(self._counted(), told._counted(), strict=True)
        )

    def _counted(self) -> tuple[float, ...]:
        return self.topics, self.messages_in, self.messages_out, self.bytes_in, self.bytes_out

    def as_json(self) -> dict[str, Any]:
        """As it is in the metadata store."""
        return {name: round(figure, 3) for name, figure in asdict(self).items()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> LoadReport:
        """The inverse; a figure that is missing or unknown does not matter."""
        return cls(**{one.name: told[one.name] for one in fields(cls) if one.name in told})
