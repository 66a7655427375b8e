"""Policies hold for unloaded topics, too: what time does to them happens all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.topic.backlog import EVICT
from pulsark.dispatch.topics.inactivity import (
    CAUGHT_UP,
    delete_if_unused,
    expire_subscriptions,
    is_due,
)
from pulsark.limits import UNLOADED_LOOKS_PER_SECOND
from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.cursor.owners import is_system_cursor
from pulsark.storage.managed_ledger.ledger_runs import NOTHING_FOLDED, FoldedLedgers
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord, read_record, read_runs
from pulsark.storage.managed_ledger.retention import Retention, trim_points

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.cursor_logs import CursorLogs
    from pulsark.dispatch.topics.deletion import TopicDeletion
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.wire.position import Position
    from pulsark.wire.topic_name import TopicName


def forgets(policies: TopicPolicies) -> bool:
    """Whether anything can ever become due for an unused topic. Pure."""
    return (
        policies.retention != Retention(-1, -1)
        or policies.message_ttl_seconds > 0
        or policies.subscription_expiration_minutes > 0
        or EVICT in (policies.backlog_by_size.action, policies.backlog_by_age.action)
    )


def has_work(
    record: ManagedLedgerRecord,
    cursors: Mapping[str, Position],
    policies: TopicPolicies,
    now_ms: int,
    unused_ms: int,
    folded: FoldedLedgers = NOTHING_FOLDED,
) -> bool:
    """Whether a topic has to be loaded for its policies to hold. Pure.

    ``cursors`` are its durable ones by name, with their mark-delete positions; ``unused_ms`` is how
    long the topic was unused, as far as is known; ``folded`` are the ledgers of its runs. What
    it says is never too little, but for messages that are older than their ledger, which wait until
    all of it is too old.
    """
    if record.removing or any(info.open for info in record.ledgers):
        return True  # an owner before did not come to its end
    ledgers = record.ledger_list(folded)
    last = ledgers.last()
    subscriptions = [position for name, position in cursors.items() if not is_system_cursor(name)]
    if is_due(policies, unused_ms) and (
        all(position >= last for position in subscriptions)
        if policies.inactive.mode == CAUGHT_UP
        else not subscriptions
    ):
        return True
    minutes = policies.subscription_expiration_minutes
    if subscriptions and 0 < minutes * 60_000 <= unused_ms:
        return True
    consumed = min(cursors.values(), default=last)
    in_table = None if policies.sealing.enabled else frozenset[int]()
    points = trim_points(
        ledgers.infos(),
        ledgers.closed_bytes,
        consumed,
        policies.retention,
        now_ms,
        policies.table_retention,
        in_table,
    )
    if next(points, None) is not None:
        return True
    if not subscriptions:
        return False
    slowest = min(subscriptions)
    size = policies.backlog_by_size
    if size.action == EVICT and 0 <= size.limit <= ledgers.bytes_after(slowest):
        return True
    oldest = ledgers.info(ledgers.after(slowest).ledger_id) if slowest < last else None
    return oldest is not None and 0 < _oldest_allowed_ms(policies) <= now_ms - oldest.timestamp_ms


def _oldest_allowed_ms(policies: TopicPolicies) -> int:
    """The age above which messages of a backlog go; 0: none."""
    age = policies.backlog_by_age
    limits = [policies.message_ttl_seconds, age.limit if age.action == EVICT else 0]
    return min((limit for limit in limits if limit > 0), default=0) * 1000


class UnloadedPolicies:
    """``Care`` for what policies ask for: expiry, quotas, retention, and the end of disuse."""

    looks_per_second = UNLOADED_LOOKS_PER_SECOND

    def __init__(
        self,
        runtime: Runtime,
        metadata: MetadataStore,
        cursor_logs: CursorLogs,
        topics: Topics,
        deletion: TopicDeletion,
        ownership: Ownership,
    ) -> None:
        self._runtime = runtime
        self._metadata = metadata
        self._cursor_logs = cursor_logs
        self._topics = topics
        self._deletion = deletion
        self._ownership = ownership

    async def _unused_since(self, name: TopicName) -> float:
        """Another broker may have served it until this one got its bundle."""
        bundle = await self._ownership.bundle_named(name)
        return max(self._topics.unused_since, self._ownership.known_since(bundle))

    def concerns(self, policies: TopicPolicies) -> bool:
        """Whether anything can ever become due for an unused topic."""
        return forgets(policies)

    async def is_due(self, name: TopicName, policies: TopicPolicies) -> bool:
        """Whether the topic has to be loaded for its policies to hold."""
        record = await read_record(managed_ledger_path(name), self._metadata)
        folded = None if record is None else await read_runs(record, self._metadata)
        if record is None or folded is None:
            return False  # or it changes at this moment: then a broker has loaded it
        cursors = await self._cursor_logs.mark_deletes(name, record.topic_id)
        if cursors is None:
            return False  # its bundle has just left
        now_ms = self._runtime.sure_clock.now_ms()
        unused = self._runtime.clock.monotonic() - await self._unused_since(name)
        return has_work(record, cursors, policies, now_ms, int(unused * 1000), folded)

    async def attend(self, topic: Topic) -> None:
        """Do what would have been done in time, had the topic been loaded."""
        topic.last_used = since = await self._unused_since(topic.name)
        for subscription in topic.subscriptions.values():
            subscription.idle_since = since
        topic.backlog.expire()
        await topic.backlog.enforce()
        await expire_subscriptions(topic)
        await topic.cursors.sync()  # only what is durable makes room
        await topic.retention.trim()
        await delete_if_unused(topic, self._deletion)
