"""A client asks one of two brokers for the topics of a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.errors import ClientError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import Client, Command
from tests.support.two_brokers import TwoBrokers

NAMES = [f"non-persistent://public/default/n-{number}" for number in range(6)]
STORED = "persistent://public/default/p"
Mode = pb.CommandGetTopicsOfNamespace


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    found = TwoBrokers()
    yield found
    found.close()


@pytest.mark.command("GET_TOPICS_OF_NAMESPACE")
@pytest.mark.parametrize(
    ("mode", "pattern", "expected"),
    [
        (Mode.ALL, "", [*NAMES, STORED]),
        (Mode.NON_PERSISTENT, "", NAMES),
        (Mode.PERSISTENT, "", [STORED]),
        (Mode.ALL, "public/default/n-[12]", NAMES[1:3]),
    ],
)
def test_non_persistent_topics_are_listed_wherever_they_are(
    both: TwoBrokers, mode: int, pattern: str, expected: list[str]
) -> None:
    assert both.call(both.a, "PUT", "/admin/v2/persistent/public/default/p").status == 204

    async def ask(node: Any) -> list[str]:
        command = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
        request = command.getTopicsOfNamespace
        request.namespace, request.request_id, request.mode = "public/default", 1, mode
        request.topics_pattern = pattern
        client = Client(node)
        client.send(command)
        answer = await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE, seconds=10)
        return list(answer.getTopicsOfNamespaceResponse.topics)

    for number, name in enumerate(map(TopicName.parse, NAMES)):
        nodes = (both.a, both.b) if number % 2 else (both.b, both.a)
        try:
            both.run(nodes[0].broker.topics.open(name, create=True))
        except ClientError:  # the other one has a topic of the same bundle
            both.run(nodes[1].broker.topics.open(name, create=True))
    assert all(node.broker.non_persistent.all() for node in both.nodes)
    for node in both.nodes:
        assert both.run(ask(node)) == expected
