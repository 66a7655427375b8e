"""What the admin API says of a live topic: the JSON objects of ``stats`` and ``internalStats``.

Names and types are Pulsar's: rates and averages are floats, everything that counts is an
integer (clients in Go refuse ``5.0``), and each field is there whether or not it has a value.
Optional fields are absent when they have none.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pulsark.dispatch.loop.turns import Pace, in_turns
from pulsark.dispatch.model.subscription_stats import ExcessKind, Level, Reads
from pulsark.dispatch.model.subscription_type import SubType
from pulsark.dispatch.stats.iso_time import iso_time
from pulsark.dispatch.stats.key_shared_stats import (
    NOT_DRAINING,
    key_shared_of_consumers,
    key_shared_of_subscription,
)
from pulsark.dispatch.topic.topic import Topic
from pulsark.limits import CURSORS_PER_TURN_MAX, LEDGERS_PER_TURN_MAX
from pulsark.metadata.resources import is_system_topic
from pulsark.storage.cursor.owners import is_system_cursor
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.interfaces import AnySubscription, AnyTopic
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.stats.rates import Rates
    from pulsark.dispatch.subscription.subscription import Subscription
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

Json = dict[str, Any]

_RANGES_SHOWN_MAX = 1000
"""Acknowledged ranges that internalStats spells out; the rest is counted."""


_NO_LEDGER: Json = {
    "ledgerId": -1,
    "entries": -1,
    "size": -1,
    "offloaded": False,
    "underReplicated": False,
}
_NO_STORAGE: Json = {
    "numberOfEntries": 0,
    "totalSize": 0,
    "currentLedgerEntries": 0,
    "currentLedgerSize": 0,
    "waitingCursorsCount": 0,
    "pendingAddEntriesCount": 0,
    "ledgers": [],
    "cursors": {},
    "schemaLedgers": [],
    "compactedLedger": _NO_LEDGER,
}


_NO_CURSOR: Json = {
    "waitingReadOp": False,
    "pendingReadOps": 0,
    "messagesConsumedCounter": 0,
    "cursorLedger": 0,
    "cursorLedgerLastEntry": 0,
    "numberOfEntriesSinceFirstNotAckedMessage": 0,
    "totalNonContiguousDeletedMessagesRange": 0,
    "subscriptionHavePendingRead": False,
    "subscriptionHavePendingReplayRead": False,
    "properties": {},
}
"""Fields of a subscription that a topic without storage does not have."""


_ACKED_BYTES: Final = "nonContiguousDeletedMessagesRangesSerializedSize"
_SUMMED: Final = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "nonContiguousDeletedMessagesRanges",
    _ACKED_BYTES,
)
"""Of a topic, the sums over its subscriptions."""


UNFIT_VALUES: Final = "pulsarkUnfitValues"
"""By the path of the field, sealed messages with a value that the table's column cannot hold. Only
of topics that have some."""


class Stats:
    """Builds the statistics of one broker's topics."""

    def __init__(
        self,
        clock: Clock,
        rates: Rates,
        ownership: Ownership,
        lost_values: Callable[[TopicName], Mapping[str, int]] = lambda _topic: {},
    ) -> None:
        """``lost_values`` counts a topic's messages with values that its table cannot hold."""
        self._lost_values = lost_values
        self.rates = rates
        self._clock = clock
        self._ownership = ownership
        self.sealing_of: Callable[[TopicName], Json] = lambda base: {}
        """What is unusual about the sealing of a topic."""

    # -- topics ----------------------------------------------------------------------------

    async def topic(
        self,
        topic: AnyTopic,
        *,
        with_publishers: bool = True,
        with_consumers: bool = True,
        with_backlog_sizes: bool = True,
    ) -> Json:
        """TopicStats of one topic or partition, built in steps."""
        pace = Pace()
        subscriptions: dict[str, Json] = {}
        sums: Json = dict.fromkeys(_SUMMED, 0)
        backlog_size = bytes_out_internal = 0
        for name, subscription in list(topic.subscriptions.items()):
            shown = await self._subscription(subscription, pace, with_consumers=with_consumers)
            subscriptions[name] = shown
            for key in _SUMMED:
                sums[key] += shown[key]
            if is_system_cursor(name):
                bytes_out_internal += shown["bytesOutCounter"]
            if shown["durable"]:  # What readers have not read holds nothing back.
                backlog_size = max(backlog_size, shown["backlogSize"])
            if not with_backlog_sizes:
                shown["backlogSize"] = -1
        publishers = []
        for producer in list(topic.producers.values()) if with_publishers else ():
            publishers.append(self.publisher(producer))
            await pace.step()
        rate_in = self.rates.topic_in(topic)
        is_stored = isinstance(topic, Topic)
        is_system = is_system_topic(str(topic.name))
        unfit = dict(self._lost_values(topic.name))
        return {
            **_drop_rate(topic, self.rates.dropped_in(topic)),
            "msgRateIn": rate_in.messages,
            "msgThroughputIn": rate_in.bytes,
            "msgRateOut": float(sums["msgRateOut"]),
            "msgThroughputOut": float(sums["msgThroughputOut"]),
            "bytesInCounter": topic.bytes_in,
            "msgInCounter": topic.messages_in,
            "systemTopicBytesInCounter": topic.bytes_in if is_system else 0,
            "bytesOutCounter": sums["bytesOutCounter"],
            "msgOutCounter": sums["msgOutCounter"],
            "bytesOutInternalCounter": bytes_out_internal,
            "averageMsgSize": _ratio(rate_in.bytes, rate_in.messages),
            "msgChunkPublished": topic.chunks_in > 0,
            "storageSize": topic.total_size,
            "backlogSize": backlog_size,
            "backlogQuotaLimitSize": topic.policies.backlog_by_size.limit,
            "backlogQuotaLimitTime": topic.policies.backlog_by_age.limit,
            **self._oldest(topic),
            "earliestMsgPublishTimeInBacklogs": 0,
            "offloadedStorageSize": 0,
            "lastOffloadLedgerId": 0,
            "lastOffloadSuccessTimeStamp": 0,
            "lastOffloadFailureTimeStamp": 0,
            "publishRateLimitedTimes": 0 if topic.throttle is None else topic.throttle.times,
            "ongoingTxnCount": 0,
            "abortedTxnCount": 0,
            "committedTxnCount": 0,
            "publishers": publishers,
            "waitingPublishers": topic.waiting_producers,
            "subscriptions": subscriptions,
            "replication": {},
            **({"deduplicationStatus": topic.deduplication_status} if is_stored else {}),
            "nonContiguousDeletedMessagesRanges": sums["nonContiguousDeletedMessagesRanges"],
            _ACKED_BYTES: sums[_ACKED_BYTES],
            "delayedMessageIndexSizeInBytes": topic.delayed_index_bytes,
            "compaction": {
                "lastCompactionRemovedEventCount": topic.compaction.removed_events,
                "lastCompactionSucceedTimestamp": topic.compaction.succeeded_ms,
                "lastCompactionFailedTimestamp": topic.compaction.failed_ms,
                "lastCompactionDurationTimeInMills": topic.compaction.duration_ms,
            },
            "ownerBroker": urlsplit(self._ownership.web_url).netloc,
            **self.sealing_of(topic.name.base),
            **({UNFIT_VALUES: unfit} if unfit else {}),
        } | ({} if topic.topic_epoch is None else {"topicEpoch": topic.topic_epoch})

    def _oldest(self, topic: AnyTopic) -> Json:
        """What the last look at quotas has found out of the oldest message in the backlog."""
        oldest = topic.backlog.known_oldest if isinstance(topic, Topic) else None
        if oldest is None:
            return {_AGE: -1}
        age_ms = self._clock.now_ms() - oldest.published_ms
        return {
            _AGE: max(0, age_ms // 1000),
            "oldestBacklogMessageSubscriptionName": oldest.subscription.name,
        }

    async def add_earliest(self, topic: AnyTopic, found: Json) -> None:
        """Look up when the oldest message of each backlog was published. ``StorageError``."""
        if not isinstance(topic, Topic):
            return
        backlog = topic.backlog
        times = []
        for subscription in backlog.subscriptions:
            oldest = await backlog.oldest_of(subscription)
            shown = found["subscriptions"].get(subscription.name)
            if oldest is not None and shown is not None:
                times.append(oldest.published_ms)
                shown["earliestMsgPublishTimeInBacklog"] = oldest.published_ms
        found["earliestMsgPublishTimeInBacklogs"] = min(times, default=0)

    def publisher(self, producer: Producer) -> Json:
        """PublisherStats."""
        rate = self.rates.producer(producer)
        return {
            **_drop_rate(producer.topic, rate.dropped),
            "accessMode": producer.access_mode.name,
            "msgRateIn": rate.messages,
            "msgThroughputIn": rate.bytes,
            "averageMsgSize": _ratio(rate.bytes, rate.messages),
            "chunkedMessageRate": rate.chunks,
            "producerId": producer.producer_id,
            "supportsPartialProducer": False,
            "producerName": producer.name,
            "address": producer.connection.address,
            "connectedSince": iso_time(producer.connected_since_ms),
            "clientVersion": producer.connection.client_version,
            "metadata": dict(producer.metadata),
        }

    async def _subscription(
        self, subscription: AnySubscription, pace: Pace, *, with_consumers: bool
    ) -> Json:
        """SubscriptionStats."""
        consumers = []
        for consumer in list(subscription.type.consumers):
            consumers.append((consumer, self.consumer(consumer)))
            await pace.step()
        shown = self._subscription_of(subscription, consumers, with_consumers=with_consumers)
        await pace.step()
        return shown

    def _subscription_of(
        self,
        subscription: AnySubscription,
        shown_consumers: list[tuple[Consumer, Json]],
        *,
        with_consumers: bool,
    ) -> Json:
        rate = self.rates.subscription(subscription)
        backlog, totals = subscription.backlog_stats(), subscription.totals
        sent = subscription.members.sent()
        is_stored = isinstance(subscription.topic, Topic)
        durable = subscription.durable and is_stored
        slots = key_shared_of_consumers(subscription)
        consumers = [shown | slots.get(consumer, {}) for consumer, shown in shown_consumers]
        if not is_stored:
            for shown in consumers:
                shown.pop("keyHashRangeArrays", None)
        stats: Json = {
            **_drop_rate(subscription.topic, rate.dropped),
            "msgRateOut": rate.messages,
            "msgThroughputOut": rate.bytes,
            "bytesOutCounter": sent.bytes,
            "msgOutCounter": sent.messages,
            "msgRateRedeliver": rate.redelivered,
            "messageAckRate": rate.acked,
            "chunkedMessageRate": rate.chunks,
            "backlogSize": backlog.size,
            "earliestMsgPublishTimeInBacklog": 0,
            "msgBacklog": backlog.entries,
            "msgBacklogNoDelayed": max(backlog.entries - backlog.delayed, 0),
            "blockedSubscriptionOnUnackedMsgs": backlog.blocked,
            "msgDelayed": backlog.delayed,
            "msgInReplay": backlog.replay,
            "unackedMessages": sum(c.unacked for c in subscription.type.consumers),
            "type": "None"
            if subscription.members.spec is None
            else subscription.members.spec.sub_type.name,
            "msgRateExpired": rate.expired,
            "totalMsgExpired": totals.entries_expired,
            "lastExpireTimestamp": totals.last_expire_ms,
            "lastConsumedFlowTimestamp": totals.last_flow_ms,
            "lastConsumedTimestamp": sent.last_ms,
            "lastAckedTimestamp": totals.last_acked_ms,
            "lastMarkDeleteAdvancedTimestamp": backlog.mark_delete_ms,
            "consumers": consumers if with_consumers else [],
            "isDurable": durable,
            "durable": durable,
            "isReplicated": subscription.properties.replicated,
            "replicated": subscription.properties.replicated,
            **key_shared_of_subscription(subscription, consumers),
            "consumersAfterMarkDeletePosition": {},
            "nonContiguousDeletedMessagesRanges": backlog.acked_ranges,
            _ACKED_BYTES: backlog.acked_bytes,
            "delayedMessageIndexSizeInBytes": backlog.delayed_index_bytes,
            "subscriptionProperties": dict(subscription.properties.given),
            "filterProcessedMsgCount": 0,
            "filterAcceptedMsgCount": 0,
            "filterRejectedMsgCount": 0,
            "filterRescheduledMsgCount": 0,
            **{
                f"dispatchThrottled{kind.value}EventsBy{level.value}Limit": backlog.throttled.get(
                    (kind, level), 0
                )
                for kind in ExcessKind
                for level in Level
            },
        }
        active = subscription.type.active
        if not is_stored:
            stats.pop("keySharedMode", None)
        elif active is not None and subscription.type.sub_type in (
            SubType.Exclusive,
            SubType.Failover,
        ):
            stats["activeConsumerName"] = active.name
        return stats

    def consumer(self, consumer: Consumer) -> Json:
        """ConsumerStats."""
        rate = self.rates.consumer(consumer)
        iso = iso_time
        return {
            "msgRateOut": rate.messages,
            "msgThroughputOut": rate.bytes,
            "bytesOutCounter": consumer.bytes_out,
            "msgOutCounter": consumer.messages_out,
            "msgRateRedeliver": rate.redelivered,
            "messageAckRate": rate.acked,
            "chunkedMessageRate": rate.chunks,
            "consumerName": consumer.name,
            "availablePermits": consumer.permits,
            "unackedMessages": consumer.unacked,
            "avgMessagesPerEntry": round(_ratio(consumer.messages_out, consumer.entries_out)),
            "blockedConsumerOnUnackedMsgs": consumer.blocked,
            "address": consumer.connection.address,
            "connectedSince": iso(consumer.connected_since_ms),
            "clientVersion": consumer.connection.client_version,
            "lastAckedTimestamp": consumer.last_acked_ms,
            "lastConsumedTimestamp": consumer.last_consumed_ms,
            "lastConsumedFlowTimestamp": consumer.last_flow_ms,
            "lastAckedTime": iso(consumer.last_acked_ms),
            "lastConsumedTime": iso(consumer.last_consumed_ms),
            "metadata": dict(consumer.metadata),
            **NOT_DRAINING,
        }

    # -- partitioned topics ------------------------------------------------------------------

    def partitioned(self, parts: dict[str, Json], partitions: int, *, per_partition: bool) -> Json:
        """PartitionedTopicStats from the TopicStats of each partition."""
        total: Json = merge(parts.values())
        total.pop("ownerBroker", None)
        total["metadata"] = {"partitions": partitions, "deleted": False}
        total["partitions"] = parts if per_partition else {}
        return total

    # -- inside a topic ------------------------------------------------------------------------

    async def internal(self, topic: AnyTopic, *, with_metadata: bool = False) -> Json:
        """PersistentTopicInternalStats, all zeros for a topic that stores nothing."""
        if not isinstance(topic, Topic):
            cursors = {name: dict(_NO_CURSOR) for name in topic.subscriptions}
            return {**_NO_STORAGE, "entriesAddedCounter": topic.entries_in, "cursors": cursors}
        return await self._internal(topic, with_metadata=with_metadata)

    async def _internal(self, topic: Topic, *, with_metadata: bool) -> Json:
        """The open ledger shows 0 entries, as in Pulsar."""
        ledger = topic.ledger
        iso = iso_time
        last = ledger.newest_ledger()
        cursors = {
            subscription.name: self._internal_cursor(subscription)
            async for subscription in in_turns(
                list(topic.subscriptions.values()), CURSORS_PER_TURN_MAX
            )
        }
        return {
            "entriesAddedCounter": topic.entries_in,
            "numberOfEntries": ledger.entries,
            "totalSize": ledger.total_size,
            "currentLedgerEntries": last.entries if last else 0,
            "currentLedgerSize": last.size if last else 0,
            "lastLedgerCreatedTimestamp": iso(last.timestamp_ms if last else topic.created_ms),
            "waitingCursorsCount": sum(shown["waitingReadOp"] for shown in cursors.values()),
            "pendingAddEntriesCount": ledger.pending_appends,
            "lastConfirmedEntry": str(ledger.last_confirmed),
            "state": "Terminated" if ledger.is_terminated else "LedgerOpened",
            "ledgers": [
                {
                    "ledgerId": info.ledger_id,
                    "entries": 0 if info.open else info.entries,
                    "size": 0 if info.open else info.size,
                    "offloaded": False,
                    "underReplicated": False,
                    **({"metadata": ""} if with_metadata else {}),
                }
                async for info in in_turns(ledger.each_ledger(), LEDGERS_PER_TURN_MAX)
            ],
            "cursors": cursors,
            "schemaLedgers": [],
            "compactedLedger": _NO_LEDGER,
        }

    def _internal_cursor(self, subscription: Subscription) -> Json:
        cursor = subscription.cursor
        ranges = islice(_acked_ranges(subscription), _RANGES_SHOWN_MAX)
        reads = subscription.dispatcher.reads
        return {
            "markDeletePosition": str(cursor.mark_delete),
            "readPosition": str(subscription.dispatcher.reader.position),
            "waitingReadOp": reads is Reads.FUTURE_ENTRIES,
            "pendingReadOps": int(reads in (Reads.NEW_ENTRIES, Reads.WAITING_ENTRIES)),
            "messagesConsumedCounter": subscription.members.sent().entries,
            "cursorLedger": -1,
            "cursorLedgerLastEntry": -1,
            "individuallyDeletedMessages": "["
            + ",".join(f"({low}..{high}]" for low, high in ranges)
            + "]",
            "lastLedgerSwitchTimestamp": iso_time(subscription.topic.created_ms),
            "state": "Open" if cursor.durable else "NoLedger",
            "active": bool(subscription.type.consumer_count),
            "numberOfEntriesSinceFirstNotAckedMessage": _entries_since(subscription),
            "totalNonContiguousDeletedMessagesRange": subscription.backlog_stats().acked_ranges,
            "subscriptionHavePendingRead": reads in (Reads.NEW_ENTRIES, Reads.FUTURE_ENTRIES),
            "subscriptionHavePendingReplayRead": reads is Reads.WAITING_ENTRIES,
            "properties": {},
        }


def merge(parts: Iterable[Json]) -> Json:
    """The sum of statistics of equal shape, for a topic of several partitions.

    Numbers add up, but of times, ages and limits the greatest counts (of what is earliest the
    least), and -1 ("none") gives way to any value.
    Consumers merge by their name, publishers by position, and both keep only their numbers besides,
    because their identities differ. A flag is set if one is. The first of several texts stays.
    """
    total: Json = {}
    for part in parts:
        if part.get(_AGE, -1) > total.get(_AGE, -1):  # whose age it is goes with the age
            total.pop("oldestBacklogMessageSubscriptionName", None)
        for key, value in part.items():
            total[key] = _merged(key, total[key], value) if key in total else _first(value)
    if "averageMsgSize" in total:
        total["averageMsgSize"] = _ratio(total["msgThroughputIn"], total["msgRateIn"])
    return total


_OF_ONE_CLIENT = frozenset(
    {
        "producerName",
        "address",
        "connectedSince",
        "clientVersion",
        "lastAckedTime",
        "lastConsumedTime",
        "drainingHashes",
        "keyHashRangeArrays",
    }
)


_AGE = "oldestBacklogMessageAgeSeconds"
_NOT_ADDED = ("last", "avg", "oldest", "backlogQuotaLimit", "producerId")


def _first(value: Any) -> Any:
    """A value as it enters a sum: clients lose what only one of them can have."""
    match value:
        case list():
            return [{k: v for k, v in item.items() if k not in _OF_ONE_CLIENT} for item in value]
        case dict() if _is_stats(value):
            return merge([value])
    return value


def _merged(key: str, before: Any, value: Any) -> Any:
    match before, value:
        case bool(), bool():
            return before or value
        case ((int() | float()), (int() | float())):
            if key.startswith("earliest"):
                return min(before, value) or max(before, value)
            latest = key.startswith(_NOT_ADDED) or -1 in (before, value)
            return max(before, value) if latest else before + value
        case dict(), dict():
            return (
                merge([before, value])
                if _is_stats(before) or _is_stats(value)
                else {**value, **before}
            )
        case list(), list():
            return _merged_clients(before, _first(value))
    return before


def _merged_clients(before: list[Json], more: list[Json]) -> list[Json]:
    """Clients of two partitions: the n-th of a name is the same one as the n-th of it before."""
    found: dict[tuple[str, int], Json] = {}
    for clients in (before, more):
        seen: Counter[str] = Counter()
        for client in clients:
            name = client.get("consumerName", "")
            key = (name, seen[name])
            seen[name] += 1
            found[key] = merge([found[key], client]) if key in found else client
    return list(found.values())


def _is_stats(value: Json) -> bool:
    """Whether an object holds statistics and not only texts, as properties do."""
    return any(not isinstance(item, str) for item in value.values())


def _drop_rate(topic: AnyTopic, dropped: float) -> Json:
    """Messages dropped a second: something that a persistent topic does not have."""
    return {} if topic.name.is_persistent else {"msgDropRate": dropped}


def _ratio(amount: float, count: float) -> float:
    return amount / count if count else 0.0


def _entries_since(subscription: Subscription) -> int:
    ledger = subscription.topic.ledger
    before = subscription.dispatcher.reader.position
    read = Position(before.ledger_id, before.entry_id - 1)
    return ledger.entries_between(subscription.cursor.mark_delete, read)


def _acked_ranges(subscription: Subscription) -> Iterator[tuple[Position, Position]]:
    """Acknowledged ranges above mark-delete, ``(low, high]``, within one ledger each."""
    for ledger_id, entries in sorted(subscription.cursor.state.acked.items()):
        firsts, lasts = entries - entries.shift(1), entries - entries.shift(-1)
        for first, last in zip(firsts, lasts, strict=True):
            yield Position(ledger_id, first - 1), Position(ledger_id, last)
