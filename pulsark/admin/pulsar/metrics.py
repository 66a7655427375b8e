"""``/metrics``: Prometheus text with Pulsar's names, so that its dashboards work.

``cluster`` is the first label of every series, and nearly everything is a gauge, also what is
called ``_total``: that is how Pulsar has it. Series exist for topics that are loaded.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response

from pulsark import __version__
from pulsark.admin.http.guard import Guarded, open_to_all
from pulsark.admin.http.places import HERE
from pulsark.admin.http.requests import BrokerOf, StatsOf
from pulsark.admin.http.streams import collected
from pulsark.admin.pulsar.histogram import histogram
from pulsark.admin.pulsar.ownership_metrics import moves, ownership_samples
from pulsark.admin.pulsar.scrapes import ScrapeAnswer, Scrapes
from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.stalls import LoopStalls
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.model.interfaces import AnyTopic
from pulsark.dispatch.stats.stats import UNFIT_VALUES, Stats
from pulsark.limits import METRICS_PER_TURN_MAX
from pulsark.security.expiries import Expiries
from pulsark.security.logins import Logins
from pulsark.storage.bookie.disk_watch import DiskWatch
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.security.audit.audit import Audit

router = Guarded(at=HERE, tags=["metrics"])

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


@router.get("/metrics", needs=open_to_all)
async def metrics(request: Request, broker: BrokerOf, stats: StatsOf) -> Response:
    """All metrics of this broker."""
    scrapes: Scrapes = request.app.state.scrapes
    scrape = await scrapes.take(lambda: collected(_lines(broker, stats)))
    takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
    return ScrapeAnswer(scrape, CONTENT_TYPE, takes_gzip=takes_gzip)


async def _lines(broker: Broker, stats: Stats) -> AsyncIterator[str]:
    cluster = broker.settings.clusterName
    async for line in render(samples(broker, stats), cluster):
        yield line
    if broker.scalable is not None:
        totals = (await broker.scalable.sums())._asdict()
        found = ((f"pulsark_scalable_{name}", (), number) for name, number in totals.items())
        async for line in render(in_turns(found, METRICS_PER_TURN_MAX), cluster):
            yield line
    yield moves(broker.ownership.counts.moves, f'cluster="{_escaped(cluster)}"')
    if broker.loop_stalls is not None:
        yield _stalls(broker.loop_stalls, cluster)
    if broker.logins is not None:
        yield _expiries(broker.logins.expiries, cluster)
    yield _process_metrics()


async def render(found: AsyncIterable[Sample], cluster: str) -> AsyncIterator[str]:
    """Samples as lines, those of one name together."""
    families: dict[str, list[str]] = {}
    async for name, labels, number in found:
        inside = ",".join(
            f'{key}="{_escaped(label)}"' for key, label in (("cluster", cluster), *labels)
        )
        families.setdefault(name, []).append(f"{name}{{{inside}}} {_number(number)}\n")
    for name, lines in families.items():
        yield f"# TYPE {name} gauge\n"
        async for line in in_turns(lines, METRICS_PER_TURN_MAX):
            yield line


class Sums:
    """Of the numbers of topics, those that have a sum; by name."""

    def __init__(self) -> None:
        self.topics = 0
        self.numbers: dict[str, float] = {}

    def add(self, numbers: dict[str, float], topics: int = 1) -> None:
        """Add those of one topic, or of some."""
        self.topics += topics
        for name, number in numbers.items():
            if name not in _NOT_ADDED:
                self.numbers[name] = self.numbers.get(name, 0) + number


def _unfit(topic: AnyTopic, found: dict[str, Any], settings: Settings) -> Iterator[Sample]:
    lost = sum(found.get(UNFIT_VALUES, {}).values())
    if lost and settings.exposeTopicLevelMetricsInPrometheus:
        yield "pulsark_unfit_values_total", _topic_labels(topic, settings), lost


async def samples(broker: Broker, stats: Stats) -> AsyncIterator[Sample]:
    """The samples of one broker. Others have their turns in between."""
    by_namespace: dict[str, Sums] = {}
    async for topic in in_turns(broker.topics.served()):
        found = await stats.topic(topic)
        numbers = _topic_numbers(topic, found, broker.settings)
        by_namespace.setdefault(topic.name.namespace_name, Sums()).add(numbers)
        for sample in _unfit(topic, found, broker.settings):
            yield sample
        if broker.settings.exposeTopicLevelMetricsInPrometheus:
            of_topic = _of_topic(topic, found, numbers, broker.settings)
            async for sample in in_turns(of_topic, METRICS_PER_TURN_MAX):
                yield sample
    everything = Sums()
    async for namespace, sums in in_turns(sorted(by_namespace.items())):
        everything.add(sums.numbers, sums.topics)
        for sample in _of_namespace(namespace, sums, broker.settings):
            yield sample
    record_bytes_max = 0
    async for each in in_turns(broker.topics.loaded(), METRICS_PER_TURN_MAX):
        record_bytes_max = max(record_bytes_max, each.ledger.record_bytes)
    yield "pulsark_topic_record_bytes_max", (), record_bytes_max
    async for sample in in_turns(_broker_samples(broker, everything), METRICS_PER_TURN_MAX):
        yield sample


def _of_topic(
    topic: AnyTopic, found: dict[str, Any], numbers: dict[str, float], settings: Settings
) -> Iterator[Sample]:
    labels = _topic_labels(topic, settings)
    yield from ((f"pulsar_{name}", labels, number) for name, number in numbers.items())
    yield from _subscriptions(found, labels, settings)
    if settings.exposeProducerLevelMetricsInPrometheus:
        yield from _producers(found, labels)


def _of_namespace(namespace: str, sums: Sums, settings: Settings) -> Iterator[Sample]:
    labels = (("namespace", namespace),)
    yield "pulsar_topics_count", labels, sums.topics
    if not settings.exposeTopicLevelMetricsInPrometheus:
        for name, number in sums.numbers.items():
            remote = (("remote_cluster", "local"),) if name == "msg_backlog" else ()
            yield f"pulsar_{name}", labels + remote, number


def _topic_labels(topic: AnyTopic, settings: Settings) -> Labels:
    name = topic.name
    if settings.splitTopicAndPartitionLabelInPrometheus:
        return (
            ("namespace", name.namespace_name),
            ("topic", str(name.base)),
            ("partition", str(name.partition)),
        )
    return (("namespace", name.namespace_name), ("topic", str(name)))


def _topic_numbers(topic: AnyTopic, found: dict[str, Any], settings: Settings) -> dict[str, float]:
    subscriptions = list(found["subscriptions"].values())
    copies = settings.managedLedgerDefaultWriteQuorum
    return {
        "rate_in": found["msgRateIn"],
        "rate_out": found["msgRateOut"],
        "throughput_in": found["msgThroughputIn"],
        "throughput_out": found["msgThroughputOut"],
        "msg_backlog": sum(s["msgBacklog"] for s in subscriptions),
        "producers_count": len(topic.producers),
        "consumers_count": sum(len(s["consumers"]) for s in subscriptions),
        "subscriptions_count": len(subscriptions),
        "storage_size": found["storageSize"] * copies,
        "storage_logical_size": found["storageSize"],
        "storage_backlog_size": found["backlogSize"],
        "storage_offloaded_size": found["offloadedStorageSize"],
        "storage_backlog_quota_limit": found["backlogQuotaLimitSize"],
        "storage_backlog_quota_limit_time": found["backlogQuotaLimitTime"],
        "storage_backlog_age_seconds": found["oldestBacklogMessageAgeSeconds"],
        "in_bytes_total": found["bytesInCounter"],
        "in_messages_total": found["msgInCounter"],
        "average_msg_size": found["averageMsgSize"],
        "publish_rate_limit_times": found["publishRateLimitedTimes"],
        "delayed_message_index_size_bytes": found["delayedMessageIndexSizeInBytes"],
    }


_NOT_ADDED = (
    "average_msg_size",
    "storage_backlog_quota_limit",
    "storage_backlog_quota_limit_time",
    "storage_backlog_age_seconds",
)
"""What is said of a topic and has no sum."""


_OF_SUBSCRIPTION = {
    "subscription_back_log": "msgBacklog",
    "subscription_back_log_no_delayed": "msgBacklogNoDelayed",
    "subscription_delayed": "msgDelayed",
    "subscription_in_replay": "msgInReplay",
    "subscription_msg_rate_out": "msgRateOut",
    "subscription_msg_throughput_out": "msgThroughputOut",
    "subscription_msg_rate_redeliver": "msgRateRedeliver",
    "subscription_msg_ack_rate": "messageAckRate",
    "subscription_msg_rate_expired": "msgRateExpired",
    "subscription_unacked_messages": "unackedMessages",
    "subscription_blocked_on_unacked_messages": "blockedSubscriptionOnUnackedMsgs",
    "subscription_total_msg_expired": "totalMsgExpired",
    "subscription_last_acked_timestamp": "lastAckedTimestamp",
    "subscription_last_consumed_timestamp": "lastConsumedTimestamp",
    "subscription_last_consumed_flow_timestamp": "lastConsumedFlowTimestamp",
    "subscription_last_expire_timestamp": "lastExpireTimestamp",
    "subscription_last_mark_delete_advanced_timestamp": "lastMarkDeleteAdvancedTimestamp",
    "out_bytes_total": "bytesOutCounter",
    "out_messages_total": "msgOutCounter",
}
_OF_CONSUMER = {
    "consumer_msg_rate_out": "msgRateOut",
    "consumer_msg_throughput_out": "msgThroughputOut",
    "consumer_msg_rate_redeliver": "msgRateRedeliver",
    "consumer_msg_ack_rate": "messageAckRate",
    "consumer_available_permits": "availablePermits",
    "consumer_unacked_messages": "unackedMessages",
    "consumer_blocked_on_unacked_messages": "blockedConsumerOnUnackedMsgs",
}


def _subscriptions(found: dict[str, Any], labels: Labels, settings: Settings) -> Iterator[Sample]:
    for name, subscription in found["subscriptions"].items():
        inner = (*labels, ("subscription", name))
        for metric, key in _OF_SUBSCRIPTION.items():
            yield f"pulsar_{metric}", inner, subscription[key]
        if "msgDropRate" in subscription:
            yield "pulsar_subscription_msg_drop_rate", inner, subscription["msgDropRate"]
        yield "pulsar_subscription_consumers_count", inner, len(subscription["consumers"])
        if settings.exposeConsumerLevelMetricsInPrometheus:
            for number, consumer in enumerate(subscription["consumers"]):
                one = (
                    *inner,
                    ("consumer_name", consumer["consumerName"]),
                    ("consumer_id", str(number)),
                )
                for metric, key in _OF_CONSUMER.items():
                    yield f"pulsar_{metric}", one, consumer[key]


def _producers(found: dict[str, Any], labels: Labels) -> Iterator[Sample]:
    for publisher in found["publishers"]:
        one = (
            *labels,
            ("producer_name", publisher["producerName"]),
            ("producer_id", str(publisher["producerId"])),
        )
        yield "pulsar_producer_msg_rate_in", one, publisher["msgRateIn"]
        yield "pulsar_producer_msg_throughput_in", one, publisher["msgThroughputIn"]
        yield "pulsar_producer_msg_average_Size", one, publisher["averageMsgSize"]


_OF_BROKER = (
    "rate_in",
    "rate_out",
    "throughput_in",
    "throughput_out",
    "msg_backlog",
    "storage_size",
    "storage_logical_size",
    "producers_count",
    "consumers_count",
    "subscriptions_count",
)


def _broker_samples(broker: Broker, everything: Sums) -> Iterator[Sample]:
    yield "pulsar_broker_topics_count", (), everything.topics
    for name in _OF_BROKER:
        yield f"pulsar_broker_{name}", (), everything.numbers.get(name, 0)
    where = (("broker", broker.settings.advertisedAddress), ("metric", "broker_connection"))
    yield "pulsar_active_connections", where, len(broker.connections)
    slots = broker.connections.slots
    yield "pulsark_connection_descriptors", (), slots.taken
    yield "pulsark_connection_descriptors_max", (), slots.most
    yield "pulsark_connections_without_login", (), slots.strangers
    yield "pulsark_connections_evicted_total", (), slots.evicted
    yield "pulsark_connections_refused_total", (), slots.refused
    yield "pulsar_broker_throttled_connections", (), broker.publish_rates.held
    buffer = broker.publish_buffer
    yield "pulsar_broker_throttled_connections_global_limit", (), buffer.waiting
    yield "pulsark_pending_publish_bytes", (), buffer.bytes
    yield "pulsark_unread_output_bytes", (), broker.output_buffer.bytes
    health = (("broker", broker.settings.advertisedAddress), ("metric", "health"))
    configured, there = broker.settings.bookies, broker.ledgers.bookie_count
    takes_all = there >= configured and not broker.refuses_publishes
    yield "pulsar_health", health, int(takes_all)
    yield from _disks(broker.disks)
    yield "pulsark_storage_losses", (), len(broker.storage_problems)
    yield "pulsark_bookies_configured", (), configured
    yield "pulsark_bookies_available", (), there
    yield "pulsar_lb_bundles_split_total", (), broker.bundle_split.done
    yield "pulsar_lb_unload_bundle_total", (), broker.load_shedding.moves
    for topic in broker.tables.changed():
        labels = (("namespace", TopicName.parse(topic).namespace_name), ("topic", topic))
        yield "pulsark_table_changed_by_others", labels, 1
    for base in list(broker.sealing.damaged_logs):
        labels = (("namespace", base.namespace_name), ("topic", str(base)))
        yield "pulsark_table_log_damaged", labels, 1
    processes = broker.tables.processes
    yield "pulsark_payloads_kept_raw_total", (("reason", "bounds"),), processes.refused.total
    for base, apart in processes.apart.all():
        labels = (("namespace", base.namespace_name), ("topic", str(base)))
        yield "pulsark_sealing_ended_processes_total", labels, apart.deaths
        yield "pulsark_sealed_apart", labels, 1
    for kind, uses in (
        ("tenant", broker.storage_quotas.tenants),
        ("namespace", broker.storage_quotas.namespaces),
    ):
        for name, use in list(uses.items()):
            yield f"pulsark_{kind}_storage_bytes", ((kind, name),), use.bytes
            yield f"pulsark_{kind}_storage_quota_bytes", ((kind, name),), use.limit
    yield from ownership_samples(broker)
    if broker.logins is not None:
        yield from _logins(broker.logins)
    if broker.audit is not None:
        yield from _audit(broker.audit)
    yield "pulsar_version_info", (("version", __version__), ("commit", "")), 1


def _disks(disks: DiskWatch) -> Iterator[Sample]:
    """The room on the disks of this process, with BookKeeper's names where it has some."""
    ledgers = {home.ledger_dir for home in disks.homes}
    for use in disks.uses:
        if use.error:
            continue
        where = (("path", use.path),)
        yield "pulsark_disk_free_bytes", where, use.free
        yield "pulsark_disk_total_bytes", where, use.total
        yield "pulsark_disk_state", where, int(use.level)
        if use.path in ledgers:
            name = re.sub(r"\W", "_", use.path)
            yield f"bookie_ledger_dir_{name}_usage", (), 100 * use.used_share
    if disks.homes:
        writable = len(disks.homes) - disks.full_journals
        yield "bookie_ledger_num_dirs", (), len(disks.homes)
        yield "bookie_ledger_writable_dirs", (), writable
        yield "bookie_SERVER_STATUS", (), int(writable > 0)


def _logins(logins: Logins) -> Iterator[Sample]:
    for (provider, method), count in list(logins.successes.items()):
        by = (("provider_name", provider), ("auth_method", method))
        yield "pulsar_authentication_success_total", by, count
    for (provider, method, reason), count in list(logins.failures.items()):
        why = (("provider_name", provider), ("auth_method", method), ("reason", reason))
        yield "pulsar_authentication_failures_total", why, count
        if reason == "expired":
            yield "pulsar_expired_token_total", (("provider_name", provider),), count
    for via, trials in list(logins.trials.items()):
        yield "pulsark_crowded_out_connections_total", (("via", via),), trials.refused


def _audit(audit: Audit) -> Iterator[Sample]:
    """What is noted of who did what, and what is lost of that."""
    yield "pulsark_audit_events_total", (), audit.written
    yield "pulsark_audit_dropped_total", (), audit.waiting.dropped
    yield "pulsark_audit_waiting", (), len(audit.waiting)
    yield "pulsark_audit_stuck", (), int(audit.is_stuck)


def _stalls(stalls: LoopStalls, cluster: str) -> str:
    """How long clients had to wait for the event loop: a histogram."""
    name, label = "pulsark_loop_stall_seconds", f'cluster="{_escaped(cluster)}"'
    found = histogram(name, label, stalls.buckets(), stalls.total_seconds, stalls.count)
    longest = f"{name}_max{{{label}}} {stalls.take_longest()!r}"
    return f"{found}# TYPE {name}_max gauge\n{longest}\n"


def _expiries(expiries: Expiries, cluster: str) -> str:
    """For how long tokens are good when they come: a histogram."""
    name, label = "pulsar_expiring_token_minutes", f'cluster="{_escaped(cluster)}"'
    return histogram(name, label, expiries.buckets(), expiries.total_minutes, expiries.count)


def _process_metrics() -> str:
    """Memory, processor time and descriptors of this process, in Prometheus' own names."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(number: float) -> str:
    return str(int(number)) if isinstance(number, bool) else repr(number)
