"""Routing of many keys at once is that of the clients for each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.datasource.write.outgoing import ColumnError
from pulsark.datasource.write.routing import Router, hashes, named_places
from pulsark.wire.routing import HASHING_SCHEMES, partition_of

keys = st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=300) | st.text("abc"))


@pytest.mark.parametrize("scheme", HASHING_SCHEMES)
@given(given=keys)
def test_keys_are_routed_as_one_by_one(scheme: str, given: list[str | None]) -> None:
    column = pa.array([None, *given], pa.string())[1:]
    found = Router(7, scheme, 0, 10).route(column)
    for key, partition in zip(given, found.tolist(), strict=True):
        if key is not None:
            assert partition == partition_of(key, 7, scheme)
    assert len(hashes(column, scheme)) == len(given)


def test_java_has_known_hashes() -> None:
    # "polygenelubricants" is the well-known text with the least hash of all, which has no sign left
    assert hashes(pa.array(["hello", "polygenelubricants", ""]), "JavaStringHash").tolist() == [
        99162322,
        0,
        0,
    ]


def test_messages_without_a_key_go_round_in_batches() -> None:
    router = Router(3, "JavaStringHash", 1, 2)
    nothing = pa.nulls(5, pa.string())
    assert router.route(nothing).tolist() == [1, 1, 2, 2, 0]
    assert router.route(nothing).tolist() == [0, 1, 1, 2, 2]
    mixed = pa.array([None, "a", None, None], pa.string())
    found = router.route(mixed)
    assert found[[0, 2, 3]].tolist() == [0, 0, 1]


def test_a_topic_with_one_partition_needs_no_hashes() -> None:
    assert np.array_equal(Router(1, "BoostHash", 5, 2).route(pa.array(["a", None])), [0, 0])


def test_rows_that_name_a_partition_have_it_and_others_that_of_their_key() -> None:
    keys = pa.array(["a", "b", None, "d", "a"])
    named = named_places(pa.array([2, None, 0, -1, None], pa.int32()), 3, "t")
    assert named is not None
    by_key = Router(3, "JavaStringHash", 1, 2).route(keys)
    found = Router(3, "JavaStringHash", 1, 2).route(keys, named).tolist()
    assert found == [2, by_key[1], 0, by_key[3], by_key[4]]


def test_partitions_that_are_not_there_are_errors() -> None:
    assert named_places(None, 3, "t") is None
    assert named_places(pa.nulls(2, pa.int32()), 0, "t") is None
    assert named_places(pa.array([-1, None]), 0, "t") is None
    for wrong, partitions, said in (
        (3, 3, "is 3 in a row, but topic t has partitions 0 to 2"),
        (-2, 3, "is -2 in a row"),
        (0, 0, "topic t has no partitions"),
    ):
        with pytest.raises(ColumnError, match=said):
            named_places(pa.array([None, wrong]), partitions, "t")
