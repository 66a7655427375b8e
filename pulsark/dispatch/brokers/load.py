"""A broker's report of its load. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLD_CHANGE = 0.1
"""The relative change of a figure that is worth a write."""


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

    def differs_from(self, told: LoadReport) -> bool:
        """Whether brokers that know ``told`` should get this report."""
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
        """The form in the metadata store."""
        return {name: round(figure, 3) for name, figure in asdict(self).items()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> LoadReport:
        """The inverse of ``as_json``. Missing figures are 0, unknown ones are ignored."""
        return cls(**{one.name: told[one.name] for one in fields(cls) if one.name in told})
