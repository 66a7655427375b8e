"""What a write is told, checked before anything is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pulsark.datasource.options.columns import COLUMNS
from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.write.outgoing import ColumnError, columns_of, messages_of, topics_of
from pulsark.datasource.write.write_options import WRITE_OPTIONS, WriteOptions

URLS = {"serviceurl": "pulsar://h:1", "adminurl": "http://h:2"}


def test_defaults_and_the_spellings_of_others() -> None:
    options = WriteOptions.parse({**URLS, "path": "t", "checkpointlocation": "/c"})
    assert (options.topic, options.exactly_once, options.create_topic) == ("t", True, False)
    assert (options.batching_max_messages, options.batching_max_bytes) == (1000, 128 << 10)
    assert options.hashing_scheme == "JavaStringHash"
    spelled = {"pulsar.producer.hashingscheme": "Murmur3_32Hash", "batchingmaxbytes": "1m"}
    assert WriteOptions.parse(spelled).hashing_scheme == "Murmur3_32Hash"
    assert WriteOptions.parse(spelled).batching_max_bytes == 1 << 20


@pytest.mark.parametrize("option", WRITE_OPTIONS, ids=lambda option: option.name)
def test_an_option_that_is_nearly_right_names_the_right_one(option: Any) -> None:
    wrong = option.name[:-1] + "x" + option.name[-1]
    with pytest.raises(OptionError, match=f"did you mean '{option.name}'"):
        WriteOptions.parse({wrong: "1"})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topic": " "}, "'topic' is empty"),
        ({"delivery": "twice"}, "'delivery'"),
        ({"numpartitions": "3"}, "createTopic"),
        ({"createtopic": "true", "numpartitions": "0"}, "'numPartitions'"),
        ({"txnappid": "a"}, "txnVersion"),
        ({"txnappid": "a b", "txnversion": "1"}, "'txnAppId'"),
        ({"txnappid": "a", "txnversion": "-1"}, "'txnVersion'"),
        ({"txnappid": "a", "txnversion": "1", "delivery": "at-least-once"}, "exactly-once"),
        ({"compression": "zstd"}, "at-least-once"),
        ({"topic": "a", "path": "b"}, "given twice"),
        ({"view": "cursors"}, "'view'"),
        ({"serviceurl": "h:1"}, "'serviceUrl'"),
    ],
)
def test_what_cannot_be_is_said(given: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        WriteOptions.parse(given)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("kafka.bootstrap.servers", "did you mean 'serviceUrl'"),
        ("kafka.acks", "'kafka.acks' is unknown"),
        ("includeHeaders", "'includeHeaders' is unknown"),
        ("pulsar.producer.blockIfQueueFull", "is unknown for a write"),
    ],
)
def test_options_of_kafkas_sink_are_not_passed_over(option: str, hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        WriteOptions.parse({option: "1", "topic": "t"})


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_columns_become_messages_whatever_they_are_called() -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 678_999, UTC)
    rows = batch(
        Value=pa.array(["a", None]),
        __key=pa.array([b"\xff", None], pa.binary()),
        __eventTime=pa.array([time, None], pa.timestamp("us", "Europe/Berlin")),
        deliver_at=pa.array([5, None], pa.int64()),
    )
    found = messages_of(rows, columns_of(rows.schema.names)).to_pylist()
    assert found[0]["value"] == b"a"
    assert (found[0]["key"], found[0]["key_base64"]) == ("/w==", True)
    assert found[0]["event_time"] == time.replace(microsecond=678_000)
    assert found[0]["deliver_at_time"] == datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)
    assert found[1]["value"] is found[1]["key"] is found[1]["event_time"] is None
    assert found[1]["deliver_at_time"] is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["key"], "'value' is missing"),
        (["value", "kay"], "did you mean 'key'"),
        (["value", "amount"], "to_json"),
        (["value", "key", "__key"], "mean the same"),
    ],
)
def test_columns_that_are_missing_or_unknown(names: list[str], said: str) -> None:
    with pytest.raises(ColumnError, match=said):
        columns_of(names)


@pytest.mark.parametrize(
    "column",
    [
        {"value": pa.array([1])},
        {"key": pa.array([1])},
        {"properties": pa.array(["x"])},
        {"event_time": pa.array(["now"])},
        {"event_time": pa.array([1], pa.timestamp("us"))},
    ],
)
def test_columns_of_a_wrong_type_are_named(column: dict[str, pa.Array]) -> None:
    rows = batch(**({"value": pa.array(["a"])} | column))
    with pytest.raises(ColumnError, match=next(iter(column))):
        messages_of(rows, columns_of(rows.schema.names))


@pytest.mark.parametrize("name", ["event_time", "__eventTime", "deliver_at"])
@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (0, pa.int64(), "is 0 in"),
        (-86_400_000, pa.int64(), "is -86400000 in"),
        (2**62, pa.int64(), f"is {2**62} in"),
        (datetime(1970, 1, 1, tzinfo=UTC), None, "is 1970-01-01 00:00:00.000000Z in"),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), None, "is 1969-12-31 23:59:59.999"),
        (datetime(1970, 1, 1, 0, 0, 0, 999, UTC), None, "is 1970-01-01 00:00:00.000999Z in"),
    ],
)
def test_times_that_no_message_can_have_are_errors(
    name: str, value: Any, kind: pa.DataType | None, shown: str
) -> None:
    good = 1 if kind is not None else datetime(2026, 1, 1, tzinfo=UTC)
    times = pa.array([None, good, value], kind or pa.timestamp("us", "UTC"))
    rows = batch(value=pa.array(["a", "b", "c"]), **{name: times})
    with pytest.raises(ColumnError, match=rf"column '{name}' {shown}.*the 3\. of its batch"):
        messages_of(rows, columns_of(rows.schema.names))


def test_a_row_without_a_topic_is_an_error() -> None:
    rows = batch(value=pa.array(["a", "b"]), topic=pa.array(["t", None]))
    with pytest.raises(ColumnError, match="topic"):
        topics_of(rows, columns_of(rows.schema.names))


@pytest.mark.parametrize("option", ["startingOffsets", "columns", "failOnDataLoss"])
def test_a_view_that_was_made_to_read_takes_no_insert(option: str) -> None:
    with pytest.raises(OptionError, match=rf"'{option}' is unknown for a write: it is for reading"):
        WriteOptions.parse({"topic": "t", option: "x"})
    with pytest.raises(ColumnError, match=r"'message_id' is the broker's to fill"):
        columns_of([column.name for column in COLUMNS][2:])
