"""Places of values in ZooKeeper, their encoding, and what is asked of a server."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import CorruptMetadataError, MetadataError, OutcomeUnknownError
from pulsark.metadata import paths
from pulsark.metadata.based_values import Stored, decode, encode
from pulsark.metadata.told import is_told
from pulsark.metadata.zookeeper.instance import check_size
from pulsark.metadata.zookeeper.layout import TREE, Layout, name_of
from pulsark.metadata.zookeeper.nodes import NoNodeError
from pulsark.runtime import Runtime
from pulsark.wire.topic_name import TopicName

TOPIC = TopicName.parse("persistent://public/default/orders")
LAYOUT = Layout()


@pytest.mark.parametrize(
    ("path", "wide"),
    [
        (paths.managed_ledger_path(TOPIC), f"{paths.MANAGED_LEDGERS}/public/default/persistent"),
        (paths.table_path(TOPIC), f"{paths.TABLES}/public/default/persistent"),
        (paths.sealed_ledger_path(paths.table_path(TOPIC), 7), f"{paths.TABLES}/public/default"),
        (paths.schemas_path(TOPIC), f"{paths.SCHEMAS}/public/default"),
        (paths.ledger_path(123), paths.LEDGERS),
    ],
)
def test_topics_and_ledgers_are_spread_over_directories(path: str, wide: str) -> None:
    node = LAYOUT.node(path)
    assert node.startswith(f"{TREE}{wide}/")
    assert len(node) == len(TREE + path) + 3
    assert "/".join(part for part in node.split("/") if len(part) != 2) == TREE + path
    assert LAYOUT.is_spread(path.rpartition("/")[0]) == (not path.endswith("/7"))


@pytest.mark.parametrize("path", ["/admin/policies/t/n", "/managed-ledgers/t/n", "/ledgers", "/x"])
def test_other_values_have_their_path(path: str) -> None:
    assert LAYOUT.node(path) == TREE + path


def test_names_of_all_characters_can_be_nodes() -> None:
    name = "a~b\x7f\uffff\U0001f600é%2F"
    node = LAYOUT.node(f"/x/{name}").rpartition("/")[2]
    assert node == "a~7e;b~7f;~ffff;~1f600;é%2F"
    assert name_of(node) == name


def test_ledgers_are_told_to_nobody_and_topics_as_they_come_and_go() -> None:
    topic = paths.managed_ledger_path(TOPIC)
    assert [is_told(topic, appearance=each) for each in (False, True)] == [False, True]
    assert not is_told(paths.ledger_path(1), appearance=True)
    assert is_told(paths.policies_path("public/default"), appearance=False)
    assert is_told(paths.ledger_path(1).replace("ledgers", "ledgers-x"), appearance=True)


def test_a_value_is_read_as_it_was_written_and_only_at_its_path() -> None:
    data = encode("/a", b"line\nline", 1 << 33)
    assert decode("/a", data) == Stored(b"line\nline", 1 << 33)
    assert decode("/a", b"") is None
    for path, wrong in (("/b", data), ("/a", data + b"x"), ("/a", data[:10]), ("/a", b"{}\n")):
        with pytest.raises(CorruptMetadataError):
            decode(path, wrong)
    with pytest.raises(CorruptMetadataError, match="newer release"):
        decode("/a", b"2 whatever\n")


class Server:
    """Answers the request whose size is tried."""

    address = "zk:one"

    def __init__(self, *outcomes: MetadataError) -> None:
        self.outcomes = list(outcomes)

    async def children(self, path: str) -> list[str]:
        return ["own"]

    async def set(self, path: str, data: bytes) -> int:
        assert len(data) > 1 << 20
        raise self.outcomes.pop(0)


def test_a_server_that_takes_only_small_requests_is_refused() -> None:
    closed = OutcomeUnknownError("closed")
    accepting = Server(closed, NoNodeError("/none"))
    asyncio.run(check_size(accepting, Runtime()))  # type: ignore[arg-type]
    with pytest.raises(MetadataError, match=r"jute\.maxbuffer"):
        asyncio.run(check_size(Server(closed, closed), Runtime()))  # type: ignore[arg-type]
