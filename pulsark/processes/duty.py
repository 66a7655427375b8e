"""The first line that a supervisor sends to a new process: its duty."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pulsark.config.settings import Settings
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.storage.table.root_identity import StorageRoots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BOOKIE: Final = "bookie"

_KEEPS_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
}
"""For the C library: buffers that are freed are used again, not given back and asked for anew."""

BEAT: Final = b"\n"
BEAT_SECONDS: Final = 1.0
"""How often a process that is ready sends ``BEAT``."""


@dataclass(frozen=True, slots=True)
class Disks:
    """What the bookie process tells the brokers."""

    bookies: Sequence[str]
    """Ids of the bookies."""
    roots: StorageRoots
    problems: Sequence[str] = field(default=(), compare=False)
    """What the bookies had lost when they were opened, one sentence each."""

    def to_json(self) -> dict[str, Any]:
        """For ``from_json``."""
        return {
            "bookies": list(self.bookies),
            "roots": dataclasses.asdict(self.roots),
            "problems": list(self.problems),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Disks:
        """The inverse of ``to_json``."""
        roots = found["roots"]
        return cls(
            found["bookies"],
            StorageRoots(tuple(roots["paths"]), roots["ids"], roots["moved"]),
            tuple(found.get("problems", ())),
        )


@dataclass(frozen=True, slots=True)
class BrokerDuty:
    """The part of a duty that only brokers have."""

    disks: Disks
    sockets: Mapping[str, Sequence[int]]
    """Descriptors of shared ports, by setting."""
    urls: ServiceUrls
    """The URLs of the shared ports."""
    in_place: bool = False
    """Whether it takes the place of a process that has ended, and its clients."""


@dataclass(frozen=True, slots=True)
class Duty:
    """The duty of one process."""

    role: str
    """The name of the process in logs."""
    settings: Settings
    broker: BrokerDuty | None = None
    """``None`` for the bookie process, and for a broker that shares nothing with others here."""
    descriptors: Sequence[int] = field(default=())
    """File descriptors that the process inherits."""
    adopt: bool = False
    """Whether to take bookies and tables as they are (``--adopt``)."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of its process, unless they are set. A bookie's loop mostly fills buffers."""
        return _KEEPS_MEMORY if self.role == BOOKIE else {}

    def encode(self) -> bytes:
        """One line."""
        told: dict[str, Any] = {"role": self.role, "settings": dataclasses.asdict(self.settings)}
        told["adopt"] = self.adopt
        if self.broker is not None:
            told["broker"] = {
                "disks": self.broker.disks.to_json(),
                "sockets": {key: list(fds) for key, fds in self.broker.sockets.items()},
                "urls": list(self.broker.urls),
                "inPlace": self.broker.in_place,
            }
        return json.dumps(told).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Duty:
        """The inverse of ``encode``."""
        told = json.loads(line)
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in told["settings"].items()
        }
        broker = None
        if (found := told.get("broker")) is not None:
            broker = BrokerDuty(
                Disks.from_json(found["disks"]),
                found["sockets"],
                ServiceUrls(*found["urls"]),
                found["inPlace"],
            )
        return cls(told["role"], Settings(**settings), broker, adopt=told["adopt"])
