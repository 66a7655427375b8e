"""The eight strategies, for producers and for consumers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsark.schemas.avro_resolution import Effort
from pulsark.schemas.compatibility import check
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.schemas.parsed import Parsed, parse
from pulsark.schemas.strategies import SchemaCompatibilityStrategy, for_consumers, relevant

S = SchemaCompatibilityStrategy


def version(*fields: tuple[str, ...], kind: SchemaType = SchemaType.AVRO) -> Parsed:
    """A record of ints; a field ``("a", "default")`` has a default."""
    listed: list[dict[str, Any]] = []
    for name, *default in fields:
        listed.append({"name": name, "type": "int"} | ({"default": 0} if default else {}))
    definition = {"type": "record", "name": "R", "fields": listed}
    return parse(SchemaData(kind, json.dumps(definition).encode()))


def allowed(existing: list[Parsed], new: Parsed) -> set[SchemaCompatibilityStrategy]:
    found = set()
    for strategy in S:
        try:
            check(existing, new, strategy)
        except IncompatibleSchemaError:
            continue
        found.add(strategy)
    return found


BASE = version(("a",))
BACKWARD = {S.BACKWARD, S.BACKWARD_TRANSITIVE, S.ALWAYS_COMPATIBLE}
FORWARD = {S.FORWARD, S.FORWARD_TRANSITIVE, S.ALWAYS_COMPATIBLE}
EVOLVING = BACKWARD | FORWARD | {S.FULL, S.FULL_TRANSITIVE, S.UNDEFINED}


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_one_change_and_the_strategies_that_allow_it(kind: SchemaType) -> None:
    base = version(("a",), kind=kind)
    assert allowed([base], version(kind=kind)) == BACKWARD
    assert allowed([base], version(("a",), ("b",), kind=kind)) == FORWARD
    assert allowed([base], version(("a",), ("b", "default"), kind=kind)) == EVOLVING
    assert allowed([base], version(("b",), kind=kind)) == {S.ALWAYS_COMPATIBLE}
    assert allowed([base], base) == set(S)
    assert allowed([], base) == set(S)


def test_the_newest_version_or_all_of_them() -> None:
    first, second = version(("a",), ("b", "default")), version(("a",))
    third = version(("a",), ("b",))
    # The third reads the first, and not the second; the second does not have to read it.
    assert allowed([first, second], third) == {S.FORWARD, S.FORWARD_TRANSITIVE, S.ALWAYS_COMPATIBLE}
    removed, back = version(("a", "default")), version(("a", "default"), ("b", "default"))
    strict = version(("a", "default"), ("b",))
    assert S.BACKWARD in allowed([removed, strict], version(("b",)))
    assert S.BACKWARD_TRANSITIVE not in allowed([removed, strict], version(("b",)))
    assert S.FORWARD in allowed([strict, back], removed)
    assert S.FORWARD_TRANSITIVE not in allowed([strict, back], removed)
    assert S.FULL in allowed([strict, back], removed)
    assert S.FULL_TRANSITIVE not in allowed([strict, back], removed)


@pytest.mark.parametrize("strategy", [s for s in S if s is not S.ALWAYS_COMPATIBLE])
def test_a_topic_keeps_its_type(strategy: SchemaCompatibilityStrategy) -> None:
    text = parse(SchemaData(SchemaType.STRING))
    with pytest.raises(
        IncompatibleSchemaError, match="exists schema type AVRO, new schema type STRING"
    ):
        check([BASE], text, strategy)
    check([text], text, strategy)


def test_always_compatible_changes_even_the_type() -> None:
    check([BASE], parse(SchemaData(SchemaType.STRING)), S.ALWAYS_COMPATIBLE)


def test_the_reason_names_the_strategy_and_the_field() -> None:
    with pytest.raises(IncompatibleSchemaError) as refused:
        check([BASE], version(("a",), ("b",)), S.FULL)
    assert str(refused.value) == (
        "Incompatible schema (FULL demands that the new schema reads the old one): "
        "record R, field b: the writer lacks it, and it has no default"
    )


def test_all_comparisons_for_one_schema_share_their_effort() -> None:
    versions = [version(*[(f"f{i}",) for i in range(n)]) for n in range(1, 4)]
    cost = sum(1 + fields for fields in (1, 2, 3))
    check(versions, version(), S.BACKWARD_TRANSITIVE, Effort(cost))
    with pytest.raises(IncompatibleSchemaError, match="too large"):
        check(versions, version(), S.BACKWARD_TRANSITIVE, Effort(cost - 1))


@pytest.mark.parametrize("strategy", S)
def test_the_versions_that_a_check_needs(strategy: SchemaCompatibilityStrategy) -> None:
    needed = relevant([3, 4, 5], strategy)
    if strategy is S.ALWAYS_COMPATIBLE:
        assert list(needed) == []
    else:
        assert list(needed) == ([3, 4, 5] if strategy.name.endswith("TRANSITIVE") else [5])


def test_a_consumer_reads_whatever_a_producer_would_have_to_be() -> None:
    assert {s: for_consumers(s) for s in S} == {
        S.UNDEFINED: S.BACKWARD,
        S.ALWAYS_INCOMPATIBLE: S.ALWAYS_INCOMPATIBLE,
        S.ALWAYS_COMPATIBLE: S.ALWAYS_COMPATIBLE,
        S.BACKWARD: S.BACKWARD,
        S.FORWARD: S.BACKWARD,
        S.FULL: S.BACKWARD,
        S.BACKWARD_TRANSITIVE: S.BACKWARD_TRANSITIVE,
        S.FORWARD_TRANSITIVE: S.BACKWARD,
        S.FULL_TRANSITIVE: S.FULL_TRANSITIVE,
    }
