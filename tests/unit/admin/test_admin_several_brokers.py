"""What a broker answers over HTTP that is not alone."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.brokers.owners import BundleOwner
from pulsark.dispatch.brokers.registry import LiveBroker
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.metadata.changes import Delete, Put
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import (
    ASSIGNED_BUNDLES,
    assigned_bundle_at,
    assigned_bundle_path,
    broker_path,
    bundle_owner_path,
)
from pulsark.metadata.store import MetadataStore
from tests.support.admin_api import AdminApi

V2 = "/admin/v2"
LOOKUP = "/lookup/v2/topic/persistent/public/default/t"
OTHER = LiveBroker(
    "other:8090",
    "i2",
    ServiceUrls("pulsar://other:6660", "http://other:8090"),
    load=LoadReport(bundles=0),
)


@pytest.fixture
def api(api: AdminApi) -> AdminApi:
    """It knows of another broker, which has less to do."""

    async def arrive() -> None:
        store = api.broker.metadata
        assert isinstance(store, MemoryMetadataStore)
        session = MemoryMetadataStore(store.tree)
        await session.put(broker_path(OTHER.broker_id), OTHER.encode(), ephemeral=True)
        await api.broker.registry.report(LoadReport(bundles=5))
        await asyncio.sleep(0.01)

    api.run(arrive())
    return api


@pytest.mark.feature("F83", "F89")
def test_a_lookup_leads_to_the_chosen_broker_without_a_redirect(api: AdminApi) -> None:
    """curl, and so the official client, would send no credentials to the other one."""
    taken = api.loop.create_task(claimed_by_other(api.broker.metadata))
    answer = api.get(LOOKUP)
    assert answer.status == 200
    assert answer.json["brokerUrl"] == OTHER.urls.broker
    assert answer.json["httpUrl"] == OTHER.urls.web
    assert api.broker.ownership.owned() == []
    api.run(asyncio.wait_for(taken, 1))


async def claimed_by_other(metadata: MetadataStore) -> None:
    """The other broker does what it is told."""
    told = asyncio.get_running_loop().create_future()
    end = metadata.watch(ASSIGNED_BUNDLES, told.set_result, lambda: None)
    bundle = assigned_bundle_at(await told)
    end()
    owner = BundleOwner(OTHER.broker_id, OTHER.instance, OTHER.urls)
    changes = Put(bundle_owner_path(bundle), owner.encode()), Delete(assigned_bundle_path(bundle))
    await metadata.commit(changes)


@pytest.mark.feature("F83", "F89")
def test_who_was_chosen_serves_the_topic(api: AdminApi) -> None:
    answer = api.get(f"{LOOKUP}?authoritative=true")
    assert answer.status == 200
    assert answer.json["brokerUrl"] == "pulsar://broker:6650"
    assert len(api.broker.ownership.owned()) == 1
    assert api.get(LOOKUP).json == answer.json


def test_all_brokers_are_listed_and_one_leads(api: AdminApi) -> None:
    both = ["broker:8080", "other:8090"]
    assert api.get(f"{V2}/brokers").json == both
    assert api.get(f"{V2}/brokers/standalone").json == both
    leader = {"serviceUrl": "http://broker:8080", "brokerId": "broker:8080"}
    assert api.get(f"{V2}/brokers/leaderBroker").json == leader


def test_a_bundle_is_given_to_the_broker_that_is_named(
    api: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.dispatch.topics.bundle_release.TAKING_SECONDS", 0.0)
    api.get(f"{LOOKUP}?authoritative=true")
    (bundle,) = api.broker.ownership.owned()
    unload = f"{V2}/namespaces/{bundle}/unload?destinationBroker="
    assert api.put(f"{unload}nobody:1").status == 412
    assert api.put(f"{unload}broker:8080").status == 204
    assert api.broker.ownership.owned() == [bundle]
    api.run(api.broker.bundle_release.release(bundle))
    assert api.put(f"{unload}broker:8080").status == 204
    assert api.broker.ownership.owned() == [bundle], "it is placed, though nobody had it"
    assert api.put(f"{unload}other:8090").status == 204
    assert api.broker.ownership.owned() == []
    noted = api.run(api.broker.metadata.get(assigned_bundle_path(bundle)))
    assert noted is not None
    assert b"other:8090" in noted.value
