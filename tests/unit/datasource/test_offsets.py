"""Message ids as text, and the checkpoint's JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.datasource.options.errors import DataSourceError, OptionError
from pulsark.datasource.options.offsets import (
    NOTHING,
    Edge,
    PartitionOffset,
    StreamOffset,
    parse_point,
)
from pulsark.wire.message_id import MessageId

ids = st.integers(0, 2**63 - 1)
places = st.one_of(
    st.just(NOTHING), st.builds(MessageId, ids, st.just(-1) | ids, st.just(-1), st.just(-1)),
    st.builds(MessageId, ids, ids, st.just(-1), st.integers(0, 10_000)),
)  # fmt: skip


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9),
        st.builds(PartitionOffset, st.text(max_size=5), places, st.none() | places),
        max_size=4,
    )
)
def test_offsets_survive_a_checkpoint(partitions: dict[str, PartitionOffset]) -> None:
    text = json.dumps(StreamOffset(partitions).to_json())
    again = StreamOffset.from_json(json.loads(text))
    assert again.partitions == partitions
    assert json.dumps(again.to_json()) == text


def test_the_text_does_not_depend_on_the_order() -> None:
    offset = PartitionOffset("id", MessageId(1, 2))
    one = StreamOffset({"a": offset, "b": offset}).to_json()
    two = StreamOffset({"b": offset, "a": offset}).to_json()
    assert json.dumps(one) == json.dumps(two)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 2, "partitions": {}},
        {"version": 1},
        {"version": 1, "partitions": {"t": {"topicId": "x"}}},
        {"version": 1, "partitions": {"t": {"topicId": "x", "read": "nonsense"}}},
        {"version": 1, "partitions": {"t": 5}},
    ],
)
def test_a_damaged_checkpoint_is_an_error(data: dict[str, object]) -> None:
    with pytest.raises(DataSourceError, match="checkpoint"):
        StreamOffset.from_json(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "neither earliest"),
        ("{}", "neither earliest"),
        ('{"t": {}}', "needs an object of partitions"),
        ('{"t": 5}', "write the message id as text"),
        ('{"t": {"x": "1:2"}}', "a partition is a number"),
        ('{"t": {"0": 12}}', "write the message id as text"),
        ('{"t": {"0": "1-2"}}', "'1-2' is not a message id"),
    ],
)
def test_bad_json_offsets_are_explained(text: str, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_point("startingOffsets", text)
    assert says in str(caught.value)
    assert "startingOffsets" in str(caught.value)


def test_kafkas_numbers_are_the_ends() -> None:
    found = parse_point("startingOffsets", '{"t": {"0": -2, "1": -1}}')
    assert found == {"t": {0: Edge.EARLIEST, 1: Edge.LATEST}}
    for wrong in ("0", "5", "-3", "true", "null"):
        with pytest.raises(OptionError, match="or -2 or -1"):
            parse_point("startingOffsets", f'{{"t": {{"0": {wrong}}}}}')
