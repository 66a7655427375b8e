"""What the admin API does with the subscriptions of a topic."""

from __future__ import annotations

import pytest

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import Position
from tests.support.admin_api import NAMESPACE, AdminApi, subscription_path
from tests.support.fake_client import FakeClient

EARLIEST = {"ledgerId": -1, "entryId": -1}


def subscribed(api: AdminApi, topic: str = "t", name: str = "s", **body: object) -> str:
    """Make a subscription that starts at the beginning; its path."""
    path = subscription_path(topic, name)
    assert api.put(path, {**EARLIEST, **body}).status == 204
    return path


def stats(api: AdminApi, topic: str = "t", name: str = "s") -> dict[str, object]:
    found: dict[str, object] = api.get(f"{NAMESPACE}/{topic}/stats").json["subscriptions"][name]
    return found


# -- the replicated flag ----------------------------------------------------------------------


def test_the_replicated_flag_is_stored_and_shown(api: AdminApi) -> None:
    path = subscribed(api, properties={"k": "v"})
    status = f"{path}/replicatedSubscriptionStatus"
    topic = "persistent://public/default/t"
    assert api.get(status).json == {topic: False}
    assert api.post(status, True).status == 204
    for _ in range(2):
        assert api.get(status).json == {topic: True}
        found = stats(api)
        assert (found["isReplicated"], found["replicated"]) == (True, True)
        assert found["subscriptionProperties"] == {"k": "v"}
        api.put(f"{NAMESPACE}/t/unload")
    given = {"pulsar.replicated.subscription": "", "a": "b"}
    assert api.put(f"{path}/properties", given).status == 204
    assert api.get(f"{path}/properties").json == {"a": "b"}
    assert api.get(status).json == {topic: True}
    assert api.post(status, False).status == 204
    assert api.get(status).json == {topic: False}
    assert api.post(status, "yes").status == 400
    assert api.post(status).status == 400
    assert api.get(f"{subscription_path('t', 'none')}/replicatedSubscriptionStatus").status == 404


def test_the_replicated_flag_of_a_new_subscription(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 2)
    path = subscription_path("p", "s")
    assert api.put(f"{path}?replicated=true").status == 204
    found = api.get(f"{path}/replicatedSubscriptionStatus").json
    assert found == {f"persistent://public/default/p-partition-{i}": True for i in range(2)}


@pytest.mark.command("SUBSCRIBE")
def test_a_consumer_turns_the_replicated_flag_on_and_never_off(api: AdminApi) -> None:
    subscribed(api)
    for asked, shown in ((False, False), (True, True), (False, True)):
        request = pb.CommandSubscribe(
            topic="t", subscription="s", subType=pb.CommandSubscribe.Exclusive, consumer_id=1
        )
        request.request_id = 1
        request.replicate_subscription_state = asked
        consumer = api.run(api.broker.subscribing.subscribe(FakeClient(), request))
        consumer.subscription.remove_consumers((consumer,))
        assert stats(api)["isReplicated"] is shown


# -- skip and reset ---------------------------------------------------------------------------


def published(api: AdminApi, *entries: bytes) -> int:
    """Publish; the ledger's id."""
    api.publish("t", *entries)
    return int(api.topic("t").ledger.last_confirmed.ledger_id)


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared])
def test_skipping_leaves_consumers_connected(api: AdminApi, kind: int) -> None:
    path = subscribed(api)
    consumer = api.connect_consumer("t", "s", kind)
    consumer.subscription.flow(consumer, 2, 0)
    published(api, b"a", b"b", b"c", b"d")
    assert api.post(f"{path}/skip/1").status == 204
    assert (stats(api)["msgBacklog"], consumer.unacked) == (3, 1 if consumer.pending else 0)
    assert api.post(f"{path}/skip_all").status == 204
    assert (stats(api)["msgBacklog"], consumer.unacked) == (0, 0)
    assert not consumer.closed
    consumer.subscription.flow(consumer, 10, 0)
    published(api, b"e")
    received = [entry.data[-1:] for _, entry, *_ in consumer.connection.received]
    assert received == [b"a", b"b", b"e"]


@pytest.mark.parametrize(
    ("batch_index", "excluded", "left"),
    [(0, False, [0, 1, 2]), (0, True, [1, 2]), (1, False, [1, 2]), (2, False, [2]), (2, True, [])],
)
def test_reset_into_a_batch(
    api: AdminApi, batch_index: int, excluded: bool, left: list[int]
) -> None:
    path = subscribed(api)
    api.publish("t", b"x" * 30, batch=3)
    ledger = published(api, b"single")
    assert api.post(f"{path}/skip_all").status == 204
    body = {"ledgerId": ledger, "entryId": 0, "batchIndex": batch_index, "isExcluded": excluded}
    assert api.post(f"{path}/resetcursor", body).status == 204
    cursor = api.topic("t").subscriptions["s"].cursor
    assert cursor.backlog() == (2 if left else 1)
    if left:
        mask = sum(1 << index for index in left)
        whole = mask == 0b111
        assert cursor.state.ack_set_of(Position(ledger, 0)) == (None if whole else [mask])


def test_a_batch_index_in_what_is_no_batch(api: AdminApi) -> None:
    path = subscribed(api)
    ledger = published(api, b"a", b"b")
    for index, excluded, left in ((-1, False, 1), (0, False, 1), (0, True, 0), (9, False, 0)):
        body = {"ledgerId": ledger, "entryId": 1, "batchIndex": index, "isExcluded": excluded}
        assert api.post(f"{path}/resetcursor", body).status == 204
        assert stats(api)["msgBacklog"] == left, body
    assert api.post(f"{path}/resetcursor", {"ledgerId": 0, "batchIndex": "one"}).status == 400
