"""Statistics of files, as engines read them in the log."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulsark.rows import TABLE_SCHEMA
from pulsark.rows.arrow.field_ids import FIELD_ID_KEY, with_field_ids
from pulsark.schemas.column_types import struct
from pulsark.storage.table.files.file_skipping import (
    STATED_COLUMNS,
    STATED_LEAVES_MAX,
    configuration,
    has_statistics,
    indexable,
    indexed_by,
)
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal import read_statistics
from pulsark.storage.table.files.statistics import truncated
from tests.sim.disk import SimDisk

LAST = chr(0x10FFFF)
YEAR_10000 = 253_402_300_800_000_000


def statistics(*, groups: int = 1, **columns: Any) -> dict[str, Any]:
    """What the log says of a file with these columns."""
    table, buffer = pa.table(columns), io.BytesIO()
    pq.write_table(table, buffer, row_group_size=-(-table.num_rows // groups))
    disk = SimDisk()
    disk.make_dirs("/t")
    disk.write_new("/t/file", buffer.getvalue())
    return dict(read_statistics(disk, "/t/file"))


def ends(found: dict[str, Any], name: str) -> tuple[Any, Any, Any]:
    return tuple(found[of].get(name) for of in ("minValues", "maxValues", "nullCount"))  # type: ignore[return-value]


def test_a_string_is_cut_so_that_its_range_still_has_it() -> None:
    assert truncated("short", up=True) == truncated("short", up=False) == "short"
    for text in ("a" * 40, "ü" * 33, "a" * 31 + LAST * 3 + "b", "x" * 32 + LAST * 300):
        low, high = truncated(text, up=False), truncated(text, up=True)
        assert low is not None
        assert low.encode() <= text.encode()
        assert high is None or text.encode() <= high.encode()
        assert len(low) == 32
    assert truncated(LAST * 50, up=True) == LAST * 50
    assert truncated(LAST * 300, up=True) is None


def test_ranges_span_row_groups_and_nulls_are_counted() -> None:
    found = statistics(groups=2, key=pa.array(["m", None, "ü", "a"]), sequence_id=[5, 6, -1, None])
    assert ends(found, "key") == ("a", "ü", 1)
    assert ends(found, "sequence_id") == (-1, 6, 1)


def test_a_column_without_values_has_only_its_nulls() -> None:
    found = statistics(groups=2, key=pa.nulls(4, pa.string()), entry_id=[1, 2, 3, 4])
    assert ends(found, "key") == (None, None, 4)


def test_strings_that_a_footer_leaves_out_are_read() -> None:
    found = statistics(groups=2, key=["b" * 5000, "c", "a", "d" * 9000])
    assert ends(found, "key") == ("a", "d" * 32 + LAST, 0)


def test_what_engines_order_differently_has_nulls_alone() -> None:
    value = pa.StructArray.from_arrays(
        [
            pa.array([1.5, float("nan"), None]),
            pa.array([True, None, None]),
            pa.array([Decimal("1.50"), None, Decimal("2.50")]),
        ],
        ["d", "o", "n"],
    )
    found = statistics(value=value, value_raw=[b"a", None, b"c"])
    assert found["minValues"] == {"value": {}}
    assert found["maxValues"] == {"value": {}}
    assert found["nullCount"] == {"value": {"d": 1, "o": 2, "n": 1}}


def test_fields_of_a_struct_count_the_nulls_of_the_struct() -> None:
    value = pa.array([{"n": {"q": "z"}}, None, {"n": {"q": None}}])
    found = statistics(value=value)
    assert found == {
        "minValues": {"value": {"n": {"q": "z"}}},
        "maxValues": {"value": {"n": {"q": "z"}}},
        "nullCount": {"value": {"n": {"q": 2}}},
    }


def test_a_struct_without_values_is_told_from_a_null() -> None:
    found = statistics(value=pa.array([{"a": None}], pa.struct([("a", pa.int64())])))
    assert found["minValues"] == found["maxValues"] == {"value": {}}


def test_a_struct_with_something_that_has_no_order_has_no_statistics() -> None:
    for other in ([1], b"x", [("k", "v")]):
        kind = pa.map_(pa.string(), pa.string()) if other == [("k", "v")] else None
        fields = [pa.array([{"z": 1}]), pa.array([other], kind)]
        found = statistics(value=pa.StructArray.from_arrays(fields, ["n", "other"]))
        assert found == {"minValues": {}, "maxValues": {}, "nullCount": {}}
    inner = struct([("a", "long"), ("b", "double"), ("c", "decimal(4,2)")])
    assert indexable(struct([("n", inner)]))[-1] == "value"
    for kind in ("binary", {"type": "array", "elementType": "long", "containsNull": True}):
        assert indexable(struct([("n", inner), ("l", struct([("x", kind)]))])) == STATED_COLUMNS


def test_only_so_many_fields_of_a_value_have_statistics() -> None:
    names = [f"f{i}" for i in range(STATED_LEAVES_MAX + 5)]
    found = statistics(value=pa.array([dict.fromkeys(names, 1)]))
    assert list(found["nullCount"]["value"]) == names[:STATED_LEAVES_MAX]


@pytest.mark.parametrize(
    ("kind", "low", "high", "shown"),
    [
        (pa.timestamp("us", "UTC"), 1, 2, "1970-01-01T00:00:00.000001Z"),
        (pa.timestamp("us"), -1, 2, "1969-12-31T23:59:59.999999"),
        (pa.timestamp("ms"), 1, 2, "1970-01-01T00:00:00.001000"),
        (pa.date32(), -1, 2, "1969-12-31"),
        (pa.int8(), -128, 2, -128),
    ],
)
def test_times_and_dates_have_their_iso_form(
    kind: pa.DataType, low: int, high: int, shown: Any
) -> None:
    wide = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    found = statistics(value=pa.array([high, low, None], wide).cast(kind))
    assert found["minValues"]["value"] == shown
    assert found["nullCount"]["value"] == 1


def test_times_without_an_iso_form_leave_their_column_out() -> None:
    found = statistics(event_time=pa.array([1, YEAR_10000]).cast(pa.timestamp("us", "UTC")))
    assert ends(found, "event_time") == (None, None, 0)
    assert indexed_by([of(found, 2)], ["event_time"]) == ()


def of(stated: dict[str, Any], rows: int) -> DataFile:
    return DataFile("p", 0, 5, 0, rows - 1, rows, 10, 1, stated)


def test_a_column_is_indexed_only_if_all_files_say_all_of_it() -> None:
    whole = of({"minValues": {"key": "a"}, "maxValues": {"key": "b"}, "nullCount": {"key": 1}}, 3)
    empty = of({"minValues": {}, "maxValues": {}, "nullCount": {"key": 3}}, 3)
    half = of({"minValues": {"key": "a"}, "maxValues": {}, "nullCount": {"key": 0}}, 3)
    uncounted = of({"minValues": {"key": "a"}, "maxValues": {"key": "b"}, "nullCount": {}}, 3)
    bare = of({}, 3)
    assert indexed_by([whole, empty], ["entry_id", "key"]) == ("key",)
    for other in (half, uncounted, bare):
        assert indexed_by([whole, other], ["key"]) == ()
    assert [has_statistics(f, ["key"]) for f in (whole, empty, half, uncounted, bare)] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_engines_are_told_of_indexed_columns_or_that_there_are_none() -> None:
    assert configuration(["key", "value"]) == {"delta.dataSkippingStatsColumns": "key,value"}
    assert configuration(()) == {"delta.dataSkippingNumIndexedCols": "0"}
    assert indexable("binary") == indexable("double") == STATED_COLUMNS
    assert indexable("long")[-1] == "value"


def ids_of(kind: Any, name: str = "") -> dict[str, int]:
    """The id of each field by its path, as Parquet has them."""
    found: dict[str, int] = {}
    children = list(kind) if isinstance(kind, pa.Schema | pa.StructType) else []
    if isinstance(kind, pa.MapType):
        children = [kind.key_field, kind.item_field]
    elif isinstance(kind, pa.ListType):
        children = [kind.value_field]
    for child in children:
        path = f"{name}.{child.name}"
        found[path] = int(child.metadata[FIELD_ID_KEY])
        found |= ids_of(child.type, path)
    return found


def test_fields_keep_their_ids_when_a_type_grows_at_any_depth() -> None:
    inner: list[tuple[str, Any]] = [("z", pa.float64())]
    few = pa.struct([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.struct(inner)))])
    more = pa.struct(
        [
            ("a", pa.string()),
            ("m", pa.map_(pa.string(), pa.struct([("new", pa.list_(pa.int32())), *inner]))),
            ("b", pa.int64()),
        ]
    )
    before, after = (
        ids_of(with_field_ids(TABLE_SCHEMA.set(8, pa.field("value", kind)))) for kind in (few, more)
    )
    assert before.items() <= after.items()
    assert len(set(after.values())) == len(after)
    assert [after[f".{name}"] for name in TABLE_SCHEMA.names] == list(range(1, 21))


def test_paths_with_one_hash_have_different_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zlib.crc32", lambda data: 7)
    kind = pa.struct([(name, pa.int64()) for name in "abc"])
    found = ids_of(with_field_ids(pa.schema([("value", kind)])))
    assert len(set(found.values())) == 4
