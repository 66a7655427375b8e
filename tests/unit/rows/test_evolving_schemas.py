"""Schemas that evolve at random: a value is shown exactly, or its payload is kept and counted."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pulsark.rows.values import ValueColumn
from pulsark.rows.values.losses import Losses
from pulsark.schemas.columns import type_of_versions
from pulsark.schemas.definition import SchemaType
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas
from tests.support.evolving_messages import KINDS, Evolving, evolution_of
from tests.support.evolving_schemas import Evolution, is_shown

S = SchemaCompatibilityStrategy
SEEDS = 4


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", list(S))
def test_each_value_is_shown_exactly_or_kept(
    kind: str, strategy: SchemaCompatibilityStrategy
) -> None:
    for seed in range(SEEDS):
        check_all(evolution_of(seed, kind, strategy))


def check_all(evolution: Evolving) -> None:
    schemas = [evolution.schema(each) for each in evolution.definitions]
    sent, payloads, versions = [], [], []
    table: list[ValueColumn] = []
    known = None
    for number, definition in enumerate(evolution.definitions):
        values = [evolution.value(definition) for _ in range(5)]
        sent += [evolution.shown(definition, value) for value in values]
        payloads += [evolution.payload(definition, value) for value in values]
        versions += [version(number)] * len(values)
        so_far = [(version(n), each) for n, each in enumerate(schemas[: number + 1])]
        found = ValueSchemas.next(known, so_far)
        known = found.kind
        table.append(ValueColumn(found))
    given = pa.array(payloads, pa.binary())
    carried = pa.array(versions, pa.binary())
    everything = tuple(ValueSchema(version(n), each) for n, each in enumerate(schemas))
    auto = ValueColumn(ValueSchemas(type_of_versions(schemas), everything))
    lost = Losses(len(payloads))
    check_shown(sent, auto.decode(given, carried, lost), lost)
    for number, column in enumerate(table):
        start, end = number * 5, number * 5 + 5
        lost = Losses(5)
        values, raw = column.split(given[start:end], carried[start:end], lost)
        values.validate(full=True)
        check_shown(sent[start:end], values, lost)
        again = ValueColumn.from_metadata(column.to_metadata())
        assert again.join(values, raw, carried[start:end]).to_pylist() == payloads[start:end]
        hidden = [place for place in range(5) if lost.rows[place]]
        assert all(raw[place].is_valid for place in hidden), "a lost value has its payload"


def check_shown(sent: list[object], shown: pa.Array, lost: Losses) -> None:
    for place, (value, found) in enumerate(zip(sent, shown.to_pylist(), strict=True)):
        if not is_shown(value, found):
            assert lost.rows[place], f"{value} is shown as {found}, and nobody is told"


def test_a_file_of_format_2_has_what_its_readers_know() -> None:
    """As long as some broker does not know format 3."""
    for seed in range(8):
        evolution = Evolution(seed, SchemaType.AVRO, S.BACKWARD)
        known = None
        for number, definition in enumerate(evolution.definitions):
            schemas = map(evolution.schema, evolution.definitions[: number + 1])
            so_far = [(version(n), each) for n, each in enumerate(schemas)]
            found = ValueSchemas.next(known, so_far, known_to_all=False)
            known = found.kind
            column = ValueColumn(found)
            assert found.kind == "binary" or found.format == 2
            assert "member0" not in str(found.kind)
            assert "__2" not in str(found.kind)
            sent = [evolution.payload(definition, evolution.value(definition)) for _ in range(3)]
            payloads, carried = pa.array(sent, pa.binary()), pa.array([version(number)] * 3)
            values, raw = column.split(payloads, carried.cast(pa.binary()))
            again = ValueColumn.from_metadata(column.to_metadata())
            assert again.join(values, raw, carried.cast(pa.binary())).to_pylist() == sent
