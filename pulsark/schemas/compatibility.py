"""Which schemas may follow which on a topic: Pulsar's eight strategies.

A *reader's* schema must be able to read all data of a *writer's*. With BACKWARD the new schema
reads existing data, with FORWARD existing schemas read new data, FULL requires both. Transitive
strategies check all versions since the last deletion, the others only the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.schemas.avro_resolution import Effort
from pulsark.schemas.definition import IncompatibleSchemaError
from pulsark.schemas.parsed import Parsed, why_cannot_read
from pulsark.schemas.strategies import SchemaCompatibilityStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence


_S = SchemaCompatibilityStrategy
_NEW_READS_OLD = {_S.BACKWARD, _S.BACKWARD_TRANSITIVE, _S.FULL, _S.FULL_TRANSITIVE, _S.UNDEFINED}
_OLD_READS_NEW = {_S.FORWARD, _S.FORWARD_TRANSITIVE, _S.FULL, _S.FULL_TRANSITIVE, _S.UNDEFINED}


def check(
    existing: Sequence[Parsed],
    new: Parsed,
    strategy: SchemaCompatibilityStrategy,
    effort: Effort | None = None,
) -> None:
    """Raise ``IncompatibleSchemaError`` unless ``new`` may join ``existing``, oldest first.

    UNDEFINED asks for as much as FULL, which is the default of a broker.
    """
    if strategy is _S.ALWAYS_COMPATIBLE:
        return
    effort = effort or Effort()
    for old in reversed(existing if strategy.is_transitive else existing[-1:]):
        _check_pair(old, new, strategy, effort)


def _check_pair(
    old: Parsed, new: Parsed, strategy: SchemaCompatibilityStrategy, effort: Effort
) -> None:
    if old.fingerprint == new.fingerprint:
        return
    if old.type is not new.type:
        raise IncompatibleSchemaError(
            f"Incompatible schema: exists schema type {old.type.name}, "
            f"new schema type {new.type.name}"
        )
    if strategy is _S.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError(
            "Incompatible schema: the strategy ALWAYS_INCOMPATIBLE allows no other one"
        )
    if strategy in _NEW_READS_OLD:
        _refuse(why_cannot_read(new, old, effort), strategy, "the new schema reads the old one")
    if strategy in _OLD_READS_NEW:
        _refuse(why_cannot_read(old, new, effort), strategy, "the old schema reads the new one")


def _refuse(reason: str | None, strategy: SchemaCompatibilityStrategy, direction: str) -> None:
    if reason is not None:
        raise IncompatibleSchemaError(
            f"Incompatible schema ({strategy.name} demands that {direction}): {reason}"
        )
