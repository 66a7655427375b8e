"""Messages that Java's client registers as Protobuf, in both of its ways, as typed tables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks.load import LOCK, compile_java
from benchmarks.maven import CACHE, class_path, java
from tests.integration.test_typed_tables import SETTINGS, wait_for
from tests.support.standalone import Standalone

HERE = Path(__file__).parent / "java"
COUNT = 60
pytestmark = pytest.mark.client("java-4.0")


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", env=SETTINGS) as process:
        yield process


def run(standalone: Standalone, *arguments: str) -> None:
    jars = os.pathsep.join([class_path(LOCK), class_path(HERE / "protobuf-java.lock")])
    source = HERE / "ProtobufSchemas.java"
    path = compile_java(source, jars, CACHE / "classes" / "protobuf-schemas")
    command = [java(), "-Xmx256m", "-cp", path, "ProtobufSchemas", standalone.service_url]
    subprocess.run([*command, *arguments], check=True, timeout=100)


def tables(standalone: Standalone) -> list[pl.DataFrame]:
    root = standalone.data_dir / "bookies" / "bookie-1" / "ledgers" / "table"
    logs = root.glob("*/*/*/_delta_log")
    return [pl.read_delta(str(log.parent)) for log in logs if (log / f"{1:020d}.json").exists()]


def values_of(found: list[pl.DataFrame], field: str, kind: Any) -> list[dict[str, Any]]:
    """The values of the one table whose values have a field of the type."""
    (rows,) = (each for each in found if dict(each.schema["value"]).get(field) == kind)
    return rows.sort("entry_id", "batch_index")["value"].to_list()


def test_java_protobuf_messages_are_columns(standalone: Standalone) -> None:
    run(standalone, "write")
    wait_for(lambda: sorted(len(each) for each in tables(standalone)) == [COUNT] * 4)
    found = tables(standalone)
    for each in found:
        assert each["value_raw"].null_count() == COUNT, "what was sent follows from the columns"
    types = values_of(found, "syntax", pl.String())
    assert types[7] == {
        "name": "n7",
        "fields": [
            {
                "kind": "TYPE_DOUBLE", "cardinality": "CARDINALITY_UNKNOWN", "number": k - 1,
                "name": "é", "type_url": "", "oneof_index": 0, "packed": k == 1, "options": [],
                "json_name": "", "default_value": "",
            }
            for k in range(3)
        ],
        "oneofs": ["o0", "o1", "o2"], "options": [], "source_context": None,
        "syntax": "SYNTAX_PROTO3", "edition": "",
    }  # fmt: skip
    assert types[0]["source_context"] == {"file_name": ""}
    listed = values_of(found, "syntax", pl.Int32())
    assert [value["name"] for value in listed] == [f"n{n}" for n in range(COUNT)]
    assert (listed[1]["syntax"], listed[0]["source_context"]) == (1, b"")
    fields = values_of(found, "type", pl.String())
    assert (fields[0]["type"], fields[0]["options"]["packed"]) == ("TYPE_SINT64", True)
    assert (fields[1]["name"], fields[1]["number"], fields[1]["options"]) == (None, 1, None)
    run(standalone, "read")
