"""``/admin/v2/brokers`` and ``/admin/v2/broker-stats``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from fastapi.responses import Response

from pulsark import __version__
from pulsark.admin.http.changes import tell
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, login, superuser
from pulsark.admin.http.merging import all_done
from pulsark.admin.http.places import ANYWHERE, HERE, NAMED_BROKER, EachBroker
from pulsark.admin.http.requests import (
    BrokerOf,
    StatsOf,
    done,
    empty,
    name_part,
    text,
    unquoted,
    value,
)
from pulsark.admin.http.streams import json_object, streamed
from pulsark.config.dynamic import DYNAMIC
from pulsark.config.keys import key_index
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import Pace, in_turns
from pulsark.dispatch.model.interfaces import AnyTopic
from pulsark.dispatch.stats.stats import Stats
from pulsark.dispatch.upkeep.upkeep import each_topic, enforce_quotas
from pulsark.errors import ConfigError

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 0.2
"""Seconds for the answer to a request that stops the broker."""

router = Guarded(at=HERE, prefix="/admin/v2", tags=["brokers"])

PULSAR_VERSION = "4.0.7"
"""The version of Pulsar whose behaviour clients and tools find here."""


@router.get("/brokers/health", needs=superuser)
async def health(broker: BrokerOf) -> Response:
    """``ok`` when the metadata store answers and publishes are taken; 503 on a full disk."""
    await broker.resources.clusters.list()
    if broker.refuses_publishes:
        why = "; ".join(broker.disks.problems()) or "the disks of the bookies are full"
        raise fail(503, f"Publishes are refused: {why}")
    return text("ok")


@router.get("/brokers/health/detail", needs=superuser)
async def health_detail(broker: BrokerOf) -> Response:
    """The state of this broker's disks and bookies, whatever it is."""
    disks = broker.disks
    configured, there = broker.settings.bookies, broker.ledgers.bookie_count
    return value(
        {
            "status": disks.level.name,
            "refusesPublishes": broker.refuses_publishes,
            "problems": broker.problems(),
            "disks": [
                {
                    "path": use.path,
                    "state": use.level.name,
                    "freeBytes": use.free,
                    "totalBytes": use.total,
                    "usedShare": round(use.used_share, 4),
                    "error": use.error,
                }
                for use in disks.uses
            ],
            "bookiesConfigured": configured,
            "bookiesAvailable": there,
        }
    )


@router.get("/brokers/ready", needs=login)
async def ready(broker: BrokerOf) -> Response:
    """``ok`` when the broker has started."""
    if not any(broker.urls):
        raise fail(500, "The broker is starting")
    return text("ok")


@router.get("/brokers/version", needs=login, at=ANYWHERE)
async def version() -> Response:
    """The version that clients compare."""
    return text(f"{PULSAR_VERSION}-pulsark-{__version__}")


@router.get("/brokers", needs=superuser, at=ANYWHERE)
async def list_brokers(broker: BrokerOf) -> Response:
    """All brokers as ``host:webport``."""
    return value(sorted(broker.registry.live))


@router.get("/brokers/leaderBroker", needs=superuser, at=ANYWHERE)
async def leader(broker: BrokerOf) -> Response:
    """The broker that gives bundles to brokers; 404 if none does at this moment."""
    found = broker.registry.get(broker.leader.broker_id)
    if found is None:
        raise fail(404, "There is no leader now; try again")
    return value({"serviceUrl": found.urls.web or found.urls.web_tls, "brokerId": found.broker_id})


@router.get("/brokers/internal-configuration", needs=superuser)
async def internal_configuration() -> Response:
    """Where Pulsar's own parts would find the metadata store: there is none to share."""
    return value(
        {
            "zookeeperServers": "",
            "configurationStoreServers": "",
            "metadataStoreUrl": "",
            "configurationMetadataStoreUrl": "",
            "ledgersRootPath": "/ledgers",
        }
    )


@router.get("/brokers/configuration", needs=superuser, at=ANYWHERE)
async def dynamic_names() -> Response:
    """Names of settings that can be changed while brokers run."""
    return value(sorted(DYNAMIC))


@router.get("/brokers/configuration/values", needs=superuser, at=ANYWHERE)
async def dynamic_values(broker: BrokerOf) -> Response:
    """Settings that were changed for all brokers, as text."""
    keys = key_index()
    found = await broker.dynamic_settings.values()
    return value({name: keys[name].shown_text(found[name]) for name in found if name in keys})


@router.get("/brokers/configuration/runtime", needs=superuser)
async def runtime_configuration(broker: BrokerOf) -> Response:
    """All settings of this broker as text, as they are in force."""
    keys = key_index()
    return value(
        {
            name: keys[name].shown_text(setting)
            for name, setting in dataclasses.asdict(broker.settings).items()
        }
    )


@router.post("/brokers/configuration/{key}/{content:path}", needs=superuser, at=ANYWHERE)
async def change_configuration(key: str, content: str, broker: BrokerOf) -> Response:
    """Change a setting of all brokers while they run."""
    try:
        changed = await broker.dynamic_settings.set(unquoted(key), unquoted(content))
    except ConfigError as error:
        raise fail(412, str(error)) from error
    tell(*changed)
    return empty()


@router.delete("/brokers/configuration/{key}", needs=superuser, at=ANYWHERE)
async def restore_configuration(key: str, broker: BrokerOf) -> Response:
    """Have a setting be again what each broker was started with."""
    name = unquoted(key)
    if name not in DYNAMIC:
        raise fail(412, f"{name[:100]} cannot be changed while the broker runs")
    tell(*await broker.dynamic_settings.delete(name))
    return empty()


@router.post("/brokers/shutdown", needs=superuser)
async def shut_down(broker: BrokerOf) -> Response:
    """Stop this broker in order, as SIGTERM does, once this is answered.

    It gives its bundles up at its own pace, whatever ``maxConcurrentUnloadPerSec`` says. What has
    started the process, such as the supervisor of several brokers, may start it again.
    """
    log.warning("Stopping this broker: an administrator asked for it over HTTP")
    asyncio.get_running_loop().call_later(_ANSWER_SECONDS, broker.runtime.stop_process)
    return done()


@router.get("/brokers/backlog-quota-check", needs=superuser, at=EachBroker(all_done))
async def check_backlogs(broker: BrokerOf) -> Response:
    """Look at all backlogs now."""
    await each_topic(broker.topics, enforce_quotas)
    return done()


@router.get("/brokers/{cluster}/{server}/ownedNamespaces", needs=superuser, at=NAMED_BROKER)
async def owned_namespaces(cluster: str, server: str, broker: BrokerOf) -> Response:
    """The bundles that a broker has claimed."""
    await _check_cluster(cluster, broker)
    if unquoted(server) != _broker_id(broker):
        raise fail(404, "Broker does not exist")
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return value(dict.fromkeys(broker.ownership.owned(), status))


@router.get("/brokers/{cluster}", needs=superuser, at=ANYWHERE)
async def list_brokers_of_cluster(cluster: str, broker: BrokerOf) -> Response:
    """The brokers of a cluster."""
    await _check_cluster(cluster, broker)
    return value(sorted(broker.registry.live))


@router.get("/broker-stats/topics", needs=superuser)
async def broker_topics(broker: BrokerOf, stats: StatsOf) -> Response:
    """Statistics of all loaded topics, by namespace, bundle and domain."""
    tree: dict[str, Any] = {}
    async for topic in in_turns(broker.topics.served()):
        bundles = tree.setdefault(topic.name.namespace_name, {})
        domains = bundles.setdefault(await broker.ownership.bundle_of(topic.name), {})
        domains.setdefault(topic.name.domain, []).append(topic)
    return streamed(json_object(_broker_tree(tree, stats, Pace())))


async def _broker_tree(
    tree: dict[str, Any], stats: Stats, pace: Pace
) -> AsyncIterator[tuple[str, Any]]:
    for name, below in tree.items():
        if isinstance(below, dict):
            yield name, _broker_tree(below, stats, pace)
        else:
            yield name, _broker_topics(below, stats, pace)


async def _broker_topics(
    topics: list[AnyTopic], stats: Stats, pace: Pace
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    for topic in topics:
        yield str(topic.name), _broker_stats(await stats.topic(topic), await stats.internal(topic))
        await pace.step()


@router.get("/broker-stats/live-brokers", needs=superuser, at=ANYWHERE)
async def live_brokers(broker: BrokerOf) -> Response:
    """What all brokers say of themselves. Pulsark's own.

    ``{"cluster", "featureLevel", "brokers": [{"brokerId", "leader", "load", ...}]}``, by their ids,
    with what ``/loadbalance/brokers`` has of each in ``docs/formats/metadata.md``, but for
    ``version``. ``featureLevel`` is the level of the cluster.
    """
    leader_id = broker.leader.broker_id
    shown = []
    for broker_id, live in sorted(broker.registry.live.items()):
        said = json.loads(live.encode())
        del said["version"]
        shown.append({**said, "leader": broker_id == leader_id})
    return value(
        {
            "cluster": broker.settings.clusterName,
            "featureLevel": broker.feature_levels.cluster,
            "brokers": shown,
        }
    )


_RATES = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
_RATE_NAMES = ("brk_in_rate", "brk_out_rate", "brk_in_tp_rate", "brk_out_tp_rate")


@router.get("/broker-stats/metrics", needs=superuser)
async def broker_metrics(broker: BrokerOf, stats: StatsOf) -> Response:
    """Pulsar's older form of metrics, of each namespace here; ``/metrics`` has all of them."""
    found: dict[str, dict[str, float]] = {}
    async for topic in in_turns(broker.topics.served()):
        told = await stats.topic(topic)
        subscriptions = told["subscriptions"].values()
        counted = {
            **{new: told[old] for new, old in zip(_RATE_NAMES, _RATES, strict=True)},
            "brk_no_of_producers": len(told["publishers"]),
            "brk_no_of_consumers": sum(len(each["consumers"]) for each in subscriptions),
            "brk_no_of_subscriptions": len(subscriptions),
            "brk_msg_backlog": sum(each["msgBacklog"] for each in subscriptions),
            "brk_storage_size": told["storageSize"],
            "brk_topics_count": 1,
        }
        sums = found.setdefault(topic.name.namespace_name, dict.fromkeys(counted, 0))
        for name, figure in counted.items():
            sums[name] += figure
    return value(
        [
            {"metrics": figures, "dimensions": {"namespace": name}}
            for name, figures in sorted(found.items())
        ]
    )


@router.get("/broker-stats/load-report", needs=superuser)
async def load_report(broker: BrokerOf, stats: StatsOf) -> Response:
    """How busy the broker is."""
    topics = []
    async for topic in in_turns(broker.topics.served()):
        found = await stats.topic(topic)
        counts = {name: found[name] for name in _RATES}
        counts["producers"] = len(found["publishers"])
        counts["consumers"] = sum(len(s["consumers"]) for s in found["subscriptions"].values())
        topics.append(counts)
    return value(
        {
            "webServiceUrl": broker.urls.web,
            "webServiceUrlTls": broker.urls.web_tls or None,
            "pulsarServiceUrl": broker.urls.broker,
            "pulsarServiceUrlTls": broker.urls.broker_tls or None,
            **{name: float(sum(counts[name] for counts in topics)) for name in _RATES},
            "numTopics": len(topics),
            "numProducers": sum(counts["producers"] for counts in topics),
            "numConsumers": sum(counts["consumers"] for counts in topics),
            "brokerVersionString": PULSAR_VERSION,
            "startTimestamp": broker.started_ms,
            "loadReportType": "LocalBrokerData",
        }
    )


async def _check_cluster(cluster: str, broker: Broker) -> None:
    if name_part("cluster", cluster) != broker.settings.clusterName:
        raise fail(404, "Cluster does not exist")


def _broker_id(broker: Broker) -> str:
    return urlsplit(broker.ownership.web_url).netloc


def _broker_stats(stats: dict[str, Any], internal: dict[str, Any]) -> dict[str, Any]:
    """The older shape of a topic's statistics."""
    same = (
        "publishers",
        "replication",
        "averageMsgSize",
        "msgRateIn",
        "msgRateOut",
        "msgThroughputIn",
        "msgThroughputOut",
        "storageSize",
        "backlogSize",
    )
    return {
        **{key: stats[key] for key in same},
        "subscriptions": {
            name: _broker_subscription(found, internal["cursors"].get(name, {}))
            for name, found in stats["subscriptions"].items()
        },
        "producerCount": len(stats["publishers"]),
        "msgInCount": stats["msgInCounter"],
        "bytesInCount": stats["bytesInCounter"],
        "msgOutCount": stats["msgOutCounter"],
        "bytesOutCount": stats["bytesOutCounter"],
        "pendingAddEntriesCount": internal["pendingAddEntriesCount"],
        "filteredEntriesCount": 0,
    }


def _broker_subscription(found: dict[str, Any], cursor: dict[str, Any]) -> dict[str, Any]:
    same = (
        "consumers",
        "msgBacklog",
        "msgRateExpired",
        "msgRateOut",
        "msgThroughputOut",
        "messageAckRate",
        "msgRateRedeliver",
        "type",
        "filterProcessedMsgCount",
        "filterAcceptedMsgCount",
        "filterRejectedMsgCount",
        "filterRescheduledMsgCount",
    )
    of_cursor = (
        "numberOfEntriesSinceFirstNotAckedMessage",
        "totalNonContiguousDeletedMessagesRange",
    )
    return {key: found[key] for key in same} | {key: cursor.get(key, 0) for key in of_cursor}
