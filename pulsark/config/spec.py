"""How a setting is declared: its default, its unit, its meaning and which values are allowed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

SCHEMA_COMPATIBILITY_STRATEGIES = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of a setting: its unit, its meaning and which values are allowed.

    ``minimum`` and ``maximum`` bound numbers (inclusive), ``choices`` strings and the items
    of lists. ``pulsark_only`` marks a key that Pulsar does not have, ``planned`` one that is
    understood but changes nothing yet. The value of a ``secret`` is shown nowhere.
    """

    unit: str
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    pulsark_only: bool = False
    planned: bool = False
    secret: bool = False


def setting(
    default: T,
    unit: str,
    meaning: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] = (),
    own: bool = False,
    planned: bool = False,
    secret: bool = False,
) -> T:
    """A field of ``Settings`` with its description; typed as its default for the checker."""
    spec = Spec(unit, meaning, ge, le, choices, own, planned, secret)
    field: Any = dataclasses.field(default=default, repr=not secret, metadata={"spec": spec})
    return field  # type: ignore[no-any-return]


def port(default: int | None, meaning: str, *, own: bool = False) -> int | None:
    """A field for a TCP port that the process listens on, or does not."""
    told = f"{meaning}; 0 takes any free port, empty: none"
    return setting(default, "port", told, ge=0, le=65535, own=own)
