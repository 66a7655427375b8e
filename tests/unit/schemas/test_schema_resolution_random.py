"""What is said to be readable is read by fastavro, and what is not is not.

fastavro insists on the names of records, so they change only together with an alias here, and a
union holds one record at most.
``tests/clients/test_java_avro.py`` compares without that.
"""

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import fastavro
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pulsark.schemas.avro import parse_avro
from pulsark.schemas.avro_resolution import Effort, why_unreadable
from tests.support.avro_schemas import Author, encodings, is_complete


def unread(definition: Any, encoded: bytes, reader: Any) -> Exception | None:
    """What fastavro has against reading a datum."""
    try:
        fastavro.schemaless_reader(io.BytesIO(encoded), definition, reader)
    except Exception as error:
        return error
    return None


@settings(max_examples=400, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.randoms(use_true_random=False))
def test_readable_is_what_fastavro_reads(rng: Random) -> None:
    author = Author(rng, records=1)
    writer = author.new()
    reader = author.next_version(writer, aliases=1)
    assume(is_complete(reader))
    fastavro.parse_schema(json.loads(json.dumps(reader)))
    reason = why_unreadable(parse_avro(reader), parse_avro(writer), Effort())
    failures = [unread(writer, encoded, reader) for encoded in encodings(writer)]
    if reason is None:
        # That the reader lacks a symbol is a matter of the datum.
        of_types = [e for e in failures if e and "not found in reader symbol list" not in str(e)]
        assert of_types == []
    else:
        assert any(failures), reason


@given(st.randoms(use_true_random=False))
def test_every_schema_reads_itself(rng: Random) -> None:
    definition = Author(rng).new()
    assert why_unreadable(parse_avro(definition), parse_avro(definition), Effort()) is None
