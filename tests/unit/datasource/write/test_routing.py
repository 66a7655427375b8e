"""Routing of many keys at once is that of the clients for each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.datasource.admin.client import admin_of
from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.write.outgoing import ColumnError
from pulsark.datasource.write.routing import (
    Router,
    _scheme_of_clients,
    fitting_schemes,
    hashes,
    named_places,
    scheme_in_use,
)
from pulsark.datasource.write.write_options import WriteOptions
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.routing import HASHING_SCHEMES, partition_of
from pulsark.wire.topic_name import TopicName
from tests.support.fake_broker import FakeBroker

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
    for anything in ([-1, None], [0, 4]):
        assert named_places(pa.array(anything), 0, "t") is None, "it has one place for all rows"
    for wrong, partitions, said in (
        (3, 3, "is 3 in a row, but topic t has partitions 0 to 2"),
        (-2, 3, "is -2 in a row"),
    ):
        with pytest.raises(ColumnError, match=said):
            named_places(pa.array([None, wrong]), partitions, "t")


def placed(scheme: str, count: int, partitions: int = 8) -> set[tuple[str, int]]:
    return {(f"k{n}", partition_of(f"k{n}", partitions, scheme)) for n in range(count)}


@pytest.mark.parametrize("scheme", HASHING_SCHEMES)
def test_the_scheme_of_producers_is_seen_by_where_keys_are(scheme: str) -> None:
    assert fitting_schemes(placed(scheme, 20), 8) == [scheme]


def test_producers_that_differ_fit_no_scheme() -> None:
    mixed = placed("JavaStringHash", 20) | {
        (f"b{n}", partition_of(f"b{n}", 8, "BoostHash")) for n in range(20)
    }
    assert fitting_schemes(mixed, 8) == []
    assert fitting_schemes(set(), 8) == list(HASHING_SCHEMES)


@pytest.mark.parametrize(
    ("versions", "scheme"),
    [
        (["Pulsar-CPP-v3.7.0", "Pulsar-CPP-v3.5.1"], "BoostHash"),
        (["Pulsar-Java-v4.0.7", "Pulsar Go 0.15.0"], "JavaStringHash"),
        (["Pulsar-CPP-v3.7.0", "Pulsar-Java-v4.0.7"], "JavaStringHash"),
        (["", "something"], "JavaStringHash"),
    ],
)
def test_without_keys_the_clients_that_produce_tell(versions: list[str], scheme: str) -> None:
    assert _scheme_of_clients(versions, list(HASHING_SCHEMES)) == scheme
    assert _scheme_of_clients(versions, ["Murmur3_32Hash"]) == "Murmur3_32Hash"


def test_auto_reads_the_newest_keys_of_all_partitions() -> None:
    with FakeBroker() as broker:
        name = broker.create("t", 8)
        for key, partition in sorted(placed("BoostHash", 40)):
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=1, publish_time=1, partition_key=key
            )
            broker.publish(name, [build_entry(metadata, b"x")], partition)
        options = WriteOptions.parse(
            {"adminUrl": broker.admin_url, "topic": "t", "hashingScheme": "auto"}
        )
        with admin_of(options) as admin:
            states = admin.topics.partitions(TopicName.parse("t"))
            assert scheme_in_use(states, options, admin) == "BoostHash"
            assert scheme_in_use(states[:1], options, admin) == "JavaStringHash"


def test_auto_needs_one_topic() -> None:
    with pytest.raises(OptionError, match="set 'topic'"):
        WriteOptions.parse({"hashingScheme": "auto"})
