"""A schema grew, and the table and Spark showed NULL or wrong numbers without a trace.

Users published integers, then longs and doubles with accepted later versions of the schema, and
numbers where an enum has symbols. They expected each value as it was sent; or NULL in that one
field, the payload beside it, and a count in the topic's statistics.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import polars as pl
import pulsar
from deltalake import DeltaTable
from pulsar.schema import AvroSchema, CustomEnum, Integer, JsonSchema, Record

from tests.support.hurried import HURRIED
from tests.support.python_client import connected
from tests.support.standalone import Standalone

SETTINGS = {
    **HURRIED,
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "5",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_schemaCompatibilityStrategy": "BACKWARD",
}
WAIT_SECONDS = 60.0


def avro(*fields: tuple[str, Any]) -> AvroSchema:
    members = [{"name": name, "type": kind} for name, kind in fields]
    return AvroSchema(None, schema_definition={"type": "record", "name": "R", "fields": members})


def publish(client: pulsar.Client, topic: str, schema: Any, *values: Any) -> None:
    producer = client.create_producer(topic, schema=schema, batching_enabled=False)
    for value in values:
        producer.send(value)
    producer.close()


def until(found: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            value = found()
            if wanted(value):
                return value
        except Exception as error:
            value = error
        assert time.monotonic() < deadline, f"still {value}"
        time.sleep(0.5)


def rows_of(standalone: Standalone, count: int) -> tuple[str, list[dict[str, Any]]]:
    root = standalone.data_dir / "bookies" / "bookie-1" / "ledgers" / "table"

    def read() -> tuple[str, list[dict[str, Any]]]:
        (log,) = root.glob("*/*/*/_delta_log")
        table = DeltaTable(str(log.parent)).to_pyarrow_table(
            columns=["entry_id", "ledger_id", "value", "value_raw"]
        )
        order = [("ledger_id", "ascending"), ("entry_id", "ascending")]
        return str(log.parent), table.sort_by(order).to_pylist()

    return until(read, lambda found: len(found[1]) >= count)  # type: ignore[no-any-return]


def test_columns_of_a_table_widen_with_the_schema(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", env=SETTINGS) as standalone, connected(standalone) as client:
        first = avro(("a", "int"), ("f", "float"), ("d", "int"))
        publish(client, "t", first, *[{"a": n, "f": 1.5, "d": n} for n in range(6)])
        rows_of(standalone, 5)
        second = avro(("a", "long"), ("f", "double"), ("d", "double"))
        sent = [
            {"a": 5_000_000_000 + n, "f": 1e300, "d": 2.5}
            if n % 2
            else {"a": 7, "f": 123456789.123, "d": 3.0}
            for n in range(9)
        ]
        publish(client, "t", second, *sent)
        table, rows = rows_of(standalone, 13)
        later = [row["value"] for row in rows[6:]]
        assert [value["a"] for value in later] == [value["a"] for value in sent][: len(later)]
        assert [value["f"] for value in later] == [value["f"] for value in sent][: len(later)]
        assert [value["d__2"] for value in later] == [value["d"] for value in sent][: len(later)]
        assert [row["value"]["d"] for row in rows[:5]] == list(range(5)), "the old column stays"
        assert all(row["value_raw"] is None for row in rows)
        polars = pl.scan_delta(table).collect()["value"].struct.field("a").sum()
        assert polars == sum(row["value"]["a"] for row in rows)


class Color(Enum):
    RED = 0
    GREEN = 1


class Painted(Record):  # type: ignore[misc]
    n = Integer(required=True)
    color = CustomEnum(Color)


def test_one_bad_field_leaves_the_others_and_is_counted(tmp_path: Path) -> None:
    """The official Python client writes the value of an enum where the schema has symbols."""
    with Standalone(tmp_path / "data", env=SETTINGS) as standalone, connected(standalone) as client:
        colors = [Color.RED, None, Color.GREEN]
        sent = [Painted(n=n, color=colors[n % 3]) for n in range(11)]
        publish(client, "t", JsonSchema(Painted), *sent)
        _, rows = rows_of(standalone, 10)
        assert [row["value"]["n"] for row in rows] == list(range(len(rows)))
        for row in rows:
            number = row["value"]["n"]
            assert row["value"]["color"] is None
            if number % 3 != 1:
                raw = json.loads(row["value_raw"])
                assert raw == {"n": number, "color": colors[number % 3].value}  # type: ignore[union-attr]
        url = f"{standalone.web_url}/admin/v2/persistent/public/default/t/stats"

        def counted() -> dict[str, int]:
            with urlopen(url) as answer:
                return json.load(answer).get("pulsarkUnfitValues", {})  # type: ignore[no-any-return]

        assert until(counted, lambda found: found.get("color", 0) >= 6).keys() == {"color"}
        with urlopen(f"{standalone.web_url}/metrics") as answer:
            assert b"pulsark_unfit_values_total{" in answer.read()
        warnings = standalone.log_path.read_text().count("values do not fit the table's columns")
        assert warnings == 1
