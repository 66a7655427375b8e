"""Pulsar's eight strategies of compatibility, and the versions that each is about.

``compatibility`` carries them out: an idle broker has no use for that.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class SchemaCompatibilityStrategy(Enum):
    """The strategies by their names in Pulsar's policies and settings."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all versions count, and not only the newest."""
        return self in (_S.BACKWARD_TRANSITIVE, _S.FORWARD_TRANSITIVE, _S.FULL_TRANSITIVE)


_S = SchemaCompatibilityStrategy


def relevant(versions: Sequence[int], strategy: SchemaCompatibilityStrategy) -> Sequence[int]:
    """The versions, of ascending ones, that a new schema is compared with."""
    if strategy is _S.ALWAYS_COMPATIBLE:
        return ()
    return versions if strategy.is_transitive else versions[-1:]


def for_consumers(strategy: SchemaCompatibilityStrategy) -> SchemaCompatibilityStrategy:
    """The strategy by which a consumer's schema is compared.

    A consumer reads and never writes: unless all versions count, its schema has to read the
    newest one, whatever a new schema of a producer would have to be.
    """
    if strategy in (_S.FORWARD, _S.FORWARD_TRANSITIVE, _S.FULL, _S.UNDEFINED):
        return _S.BACKWARD
    return strategy
