"""Settings that are changed over HTTP while brokers run, and how all brokers follow them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsark.metadata import records
from pulsark.metadata.paths import CONFIGURATION
from pulsark.metadata.store import ANY_VERSION
from tests.support.admin_api import AdminApi
from tests.support.bundle_nodes import turns
from tests.support.two_brokers import TwoBrokers

CONFIG = "/admin/v2/brokers/configuration"
TOPIC = "persistent://public/default/t"


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    both = TwoBrokers(maxProducersPerTopic=3)
    yield both
    both.close()


def test_a_setting_is_changed_and_changed_back(api: AdminApi) -> None:
    assert "maxTenants" in api.get(CONFIG).json
    assert api.get(f"{CONFIG}/values").json == {}
    answer = api.post(f"{CONFIG}/maxTenants/1")
    assert (answer.status, answer.body) == (200, b"")
    assert api.get(f"{CONFIG}/values").json == {"maxTenants": "1"}
    assert api.get(f"{CONFIG}/runtime").json["maxTenants"] == "1"
    assert api.put("/admin/v2/tenants/t", {}).status == 412
    for _ in range(2):
        answer = api.delete(f"{CONFIG}/maxTenants")
        assert (answer.status, answer.body) == (200, b"")
    assert api.get(f"{CONFIG}/values").json == {}
    assert api.get(f"{CONFIG}/runtime").json["maxTenants"] == "0"
    assert api.put("/admin/v2/tenants/t", {"allowedClusters": ["standalone"]}).status == 204


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("maxTenants/x", "maxTenants=x: a whole number from 0 is allowed"),
        ("maxTenants/%20", "not nothing"),
        ("maxMessageSize/5000", "maxMessageSize cannot be changed"),
        ("subscriptionTypesEnabled/Shared%2CNone", "list of"),
    ],
)
def test_what_cannot_be_is_refused(api: AdminApi, path: str, why: str) -> None:
    answer = api.post(f"{CONFIG}/{path}")
    assert answer.status == 412
    assert why in answer.reason
    assert api.delete(f"{CONFIG}/none").status == 412
    assert api.get(f"{CONFIG}/values").json == {}


def test_a_list_is_given_as_pulsars_tools_do(api: AdminApi) -> None:
    assert api.post(f"{CONFIG}/subscriptionTypesEnabled/Shared%2CFailover").status == 200
    assert api.broker.settings.subscriptionTypesEnabled == ("Shared", "Failover")


def test_all_brokers_and_their_topics_follow_at_once(both: TwoBrokers) -> None:
    topic = both.topic(TOPIC, both.b)
    assert topic.policies.max_producers == 3
    assert both.call(both.a, "POST", f"{CONFIG}/maxProducersPerTopic/7").status == 200
    both.run(turns())
    assert [node.broker.settings.maxProducersPerTopic for node in both.nodes] == [7, 7]
    assert topic.policies.max_producers == 7
    assert both.call(both.b, "DELETE", f"{CONFIG}/maxProducersPerTopic").status == 200
    both.run(turns())
    assert [node.broker.settings.maxProducersPerTopic for node in both.nodes] == [3, 3]
    assert topic.policies.max_producers == 3


def test_a_rate_of_the_broker_holds_for_topics_that_are_loaded(both: TwoBrokers) -> None:
    topic = both.topic(TOPIC, both.b)
    rates = both.b.broker.publish_rates
    assert (list(rates.of(topic)), topic.policies.has_publish_rate) == ([], False)
    name = "brokerPublisherThrottlingMaxMessageRate"
    both.call(both.a, "POST", f"{CONFIG}/{name}/5")
    both.run(turns())
    assert (len(list(rates.of(topic))), topic.policies.has_publish_rate) == (1, True)
    both.call(both.a, "DELETE", f"{CONFIG}/{name}")
    both.run(turns())
    assert (list(rates.of(topic)), topic.policies.has_publish_rate) == ([], False)


def test_a_broker_that_starts_later_or_missed_a_change_has_it_too(both: TwoBrokers) -> None:
    both.call(both.a, "POST", f"{CONFIG}/maxTenants/9")
    late = both.run(both._start())
    assert late.broker.settings.maxTenants == 9
    both.nodes.append(late)
    dynamic = late.broker.dynamic_settings
    dynamic._end_watch()
    both.call(both.a, "POST", f"{CONFIG}/maxTenants/10")
    both.run(turns())
    assert late.broker.settings.maxTenants == 9

    async def miss() -> None:
        dynamic._missed()
        await turns()

    both.run(miss())
    assert late.broker.settings.maxTenants == 10


def test_what_a_broker_does_not_know_keeps_nothing_else_from_holding(both: TwoBrokers) -> None:
    values = {"ofALaterVersion": "1", "maxTenants": "9", "maxNamespacesPerTenant": "x"}
    record = records.encode({"values": values})
    both.run(both.a.broker.metadata.put(CONFIGURATION, record, ANY_VERSION))
    both.run(turns())
    for node in both.nodes:
        settings = node.broker.settings
        assert (settings.maxTenants, settings.maxNamespacesPerTenant) == (9, 0)
