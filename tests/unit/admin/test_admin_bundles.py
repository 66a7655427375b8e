"""What is done to a whole namespace or to one of its bundles."""

from __future__ import annotations

import pytest

from tests.support.admin_api import NAMESPACE, AdminApi, subscription_path

NS = "/admin/v2/namespaces/public/default"
EARLIEST = {"ledgerId": -1, "entryId": -1}
TOPICS = [f"t{number}" for number in range(8)]


def bundle_of(api: AdminApi, topic: str, domain: str = "persistent") -> str:
    return api.get(f"/lookup/v2/topic/{domain}/public/default/{topic}/bundle").body.decode()


def backlogs(api: AdminApi, subscription: str = "s") -> dict[str, int]:
    found = {}
    for topic in TOPICS:
        subscriptions = api.get(f"{NAMESPACE}/{topic}/stats").json["subscriptions"]
        if subscription in subscriptions:
            found[topic] = subscriptions[subscription]["msgBacklog"]
    return found


@pytest.fixture
def busy(api: AdminApi) -> AdminApi:
    """Topics over all bundles, half of them not loaded, with two subscriptions that are behind."""
    for number, topic in enumerate(TOPICS):
        for subscription in ("s", "r/x"):
            assert api.put(subscription_path(topic, subscription), EARLIEST).status == 204
        api.publish(topic, b"a", b"b")
        if number % 2:
            api.put(f"{NAMESPACE}/{topic}/unload")
    assert len({bundle_of(api, topic) for topic in TOPICS}) > 1
    return api


def loaded(api: AdminApi) -> set[str]:
    return {topic.name.local for topic in api.broker.topics.loaded()}


def test_the_backlog_of_a_namespace_is_cleared(busy: AdminApi) -> None:
    before = loaded(busy)
    assert busy.post(f"{NS}/clearBacklog").status == 204
    assert loaded(busy) == before, "topics that nobody uses are unloaded again"
    assert backlogs(busy) == backlogs(busy, "r/x") == dict.fromkeys(TOPICS, 0)


def test_the_backlog_of_one_subscription(busy: AdminApi) -> None:
    assert busy.delete(subscription_path("t1", "s")).status == 204
    assert busy.post(f"{NS}/clearBacklog/s").status == 204
    assert backlogs(busy) == dict.fromkeys([t for t in TOPICS if t != "t1"], 0)
    assert busy.post(f"{NS}/clearBacklog/none").status == 204
    assert backlogs(busy, "r/x") == dict.fromkeys(TOPICS, 2)


def test_the_backlog_of_a_bundle(busy: AdminApi) -> None:
    bundle = bundle_of(busy, "t0")
    expected = {topic: 0 if bundle_of(busy, topic) == bundle else 2 for topic in TOPICS}
    assert busy.post(f"{NS}/{bundle}/clearBacklog/r%2Fx").status == 204
    assert backlogs(busy, "r/x") == expected
    assert busy.post(f"{NS}/{bundle}/clearBacklog").status == 204
    assert backlogs(busy) == expected
    assert busy.post(f"{NS}/0x00000000_0x00000001/clearBacklog").status == 412


def test_a_subscription_leaves_a_namespace(busy: AdminApi) -> None:
    bundle = bundle_of(busy, "t0")
    assert busy.post(f"{NS}/{bundle}/unsubscribe/s").status == 204
    assert set(backlogs(busy)) == {t for t in TOPICS if bundle_of(busy, t) != bundle}
    assert busy.post(f"{NS}/unsubscribe/s").status == 204
    assert backlogs(busy) == {}
    assert busy.post(f"{NS}/unsubscribe/s").status == 204
    assert backlogs(busy, "r/x") == dict.fromkeys(TOPICS, 2)
    assert busy.post(f"{NS}/unsubscribe/pulsar.dedup").status == 412
    busy.connect_consumer("t0", "r/x")
    assert busy.post(f"{NS}/unsubscribe/r%2Fx").status == 412
    assert busy.post("/admin/v2/namespaces/public/none/unsubscribe/s").status == 404
    assert busy.post("/admin/v2/namespaces/public/none/clearBacklog").status == 404


def test_where_topics_are_in_their_bundle(busy: AdminApi) -> None:
    bundle = bundle_of(busy, "t0")
    names = {f"persistent://public/default/{t}" for t in TOPICS if bundle_of(busy, t) == bundle}
    found = busy.get(f"{NS}/{bundle}/topicHashPositions").json
    assert (found["namespace"], found["bundle"]) == ("public/default", bundle)
    low, high = (int(edge, 16) for edge in bundle.split("_"))
    assert found["topicHashPositions"].keys() == names
    assert all(low <= place <= high for place in found["topicHashPositions"].values())
    one = "persistent://public/default/t0"
    asked = busy.get(f"{NS}/{bundle}/topicHashPositions?topics={one},other").json
    assert asked["topicHashPositions"].keys() == {one}


def test_the_topics_of_a_bundle_are_deleted(busy: AdminApi) -> None:
    bundle = bundle_of(busy, "t0")
    rest = {t for t in TOPICS if bundle_of(busy, t) != bundle}
    assert busy.delete(f"{NS}/{bundle}").status == 409
    assert busy.delete(f"{NS}/{bundle}?force=true").status == 204
    assert {name.rpartition("/")[2] for name in busy.get(NAMESPACE).json} == rest
    assert busy.delete(f"{NS}/{bundle}").status == 204
    assert busy.delete(f"{NS}/0x00000000_0x00000001").status == 412


def edges(api: AdminApi) -> list[str]:
    found: list[str] = api.get(f"{NS}/bundles").json["boundaries"]
    return found


def test_a_bundle_is_split_and_its_topics_go_on(busy: AdminApi) -> None:
    before, bundle = backlogs(busy), bundle_of(busy, "t0")
    low, high = (int(edge, 16) for edge in bundle.split("_"))
    assert busy.put(f"{NS}/{bundle}/split?unload=false").status == 204
    middle = f"0x{(low + high) // 2:08x}"
    assert middle in edges(busy)
    assert middle in bundle_of(busy, "t0")
    assert set(busy.broker.ownership.owned()) >= {
        f"public/default/0x{low:08x}_{middle}",
        f"public/default/{middle}_0x{high:08x}",
    }
    assert backlogs(busy) == before
    assert busy.put(f"{NS}/{bundle}/split").status == 412


def test_the_largest_and_the_hottest_bundle_are_found_by_the_broker(busy: AdminApi) -> None:
    counts: dict[str, int] = {}
    for topic in TOPICS:
        bundle = bundle_of(busy, topic)
        counts[bundle] = counts.get(bundle, 0) + 1
    answer = busy.put(f"{NS}/LARGEST/split?unload=true")
    assert answer.status == 307
    path, _, query = answer.headers["location"].partition("?")
    *_, chosen, verb = path.split("/")
    assert (verb, query) == ("split", "unload=true")
    assert counts[chosen] == max(counts.values())
    assert busy.put(f"{NS}/HOT/split").status == 307
    assert busy.put(f"{NS}/SMALLEST/split").status == 404
    assert busy.put("/admin/v2/namespaces/public/none/LARGEST/split").status == 404


def test_where_a_bundle_is_split(busy: AdminApi) -> None:
    bundle = bundle_of(busy, "t0")
    split = f"{NS}/{bundle}/split?unload=true&splitAlgorithmName"
    assert busy.put(f"{split}=somewhere").status == 412
    assert busy.put(f"{split}=specified_positions_divide", [1 << 32]).status == 412
    assert busy.put(f"{split}=specified_positions_divide", [1] * 17).status == 412
    assert busy.put(f"{split}=specified_positions_divide", ["1"]).status == 400
    assert busy.put(f"{split}=specified_positions_divide", {"1": 2}).status == 400
    before = len(edges(busy))
    assert busy.put(f"{split}=topic_count_equally_divide").status == 204
    assert len(edges(busy)) == before + 1
    last = edges(busy)[-2]
    at = [int(last, 16) + 9, int(last, 16) + 5]
    path = f"{NS}/{last}_0xffffffff/split?splitAlgorithmName=specified_positions_divide"
    assert busy.put(path, at).status == 204
    assert {f"0x{place:08x}" for place in at} < set(edges(busy))


def test_what_cannot_be_split(api: AdminApi) -> None:
    assert api.put(f"{NS}/0x00000000_0x00000001/split").status == 412
    assert api.put("/admin/v2/namespaces/public/many", {"bundles": {"numBundles": 1024}}).status
    [first, second, *_] = api.get("/admin/v2/namespaces/public/many/bundles").json["boundaries"]
    path = f"/admin/v2/namespaces/public/many/{first}_{second}/split"
    assert api.put(path).status == 412
    assert len(api.get("/admin/v2/namespaces/public/many/bundles").json["boundaries"]) == 1025


def test_non_persistent_topics_of_a_bundle(api: AdminApi) -> None:
    path = "/admin/v2/non-persistent/public/default"
    for topic in TOPICS:
        assert api.put(f"{path}/{topic}").status == 204
    bundle = bundle_of(api, "t0", "non-persistent")
    expected = {
        f"non-persistent://public/default/{topic}"
        for topic in TOPICS
        if bundle_of(api, topic, "non-persistent") == bundle
    }
    assert set(api.get(f"{path}/{bundle}").json) == expected
    assert api.get(f"{path}/0x00000000_0x00000001").status == 412
