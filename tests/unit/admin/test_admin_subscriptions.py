"""What the admin API does with the subscriptions of a topic."""

from __future__ import annotations

import pytest

from pulsark.wire import pulsar_pb2 as pb
from tests.support.admin_api import NAMESPACE, AdminApi, connection, subscription_path

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
        consumer = api.run(api.broker.subscribing.subscribe(connection(), request))
        consumer.subscription.remove_consumer(consumer)
        assert stats(api)["isReplicated"] is shown
