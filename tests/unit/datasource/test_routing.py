"""Routing of many keys at once is that of the clients for each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.datasource.routing import Router, hashes
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
