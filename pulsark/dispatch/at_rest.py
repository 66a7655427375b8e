"""Topics that nobody has loaded: what time does to them happens all the same.

Such a topic is a row in the metadata store and packed cursors in its bundle's log. Both are looked
at now and then, slowly; only where they show that something is due the topic is loaded, for as long
as that takes. So policies hold for topics that nobody has touched since the broker started, and a
topic to which nothing happens stays a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pulsark.dispatch.backlog import EVICT
from pulsark.dispatch.inactivity import CAUGHT_UP, delete_if_unused, expire_subscriptions, is_due
from pulsark.dispatch.policies import TopicPolicies, effective
from pulsark.dispatch.topic_kinds import is_system_subscription
from pulsark.errors import PulsarkError, trace_of
from pulsark.limits import LOOKS_AT_REST_PER_SECOND, VISITS_AT_REST_PER_SECOND
from pulsark.storage.ledger_record import (
    ManagedLedgerRecord,
    managed_ledger_path,
    read_record,
    read_runs,
)
from pulsark.storage.ledger_runs import NOTHING_FOLDED, FoldedLedgers
from pulsark.storage.position import Position
from pulsark.storage.retention import Retention, trim_points
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.topic import Topic

log = logging.getLogger(__name__)

_LOOKS_A_TURN = 50


def forgets(policies: TopicPolicies) -> bool:
    """Whether anything can ever become due of a topic that nobody uses. Pure."""
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
    rest_ms: int,
    folded: FoldedLedgers = NOTHING_FOLDED,
) -> bool:
    """Whether a topic has to be loaded for its policies to hold. Pure.

    ``cursors`` are its durable ones by name, with their mark-delete positions; ``rest_ms`` is how
    long nobody has used the topic, as far as is known; ``folded`` are the ledgers of its runs. What
    it says is never too little, but for messages that are older than their ledger, which wait until
    all of it is too old.
    """
    if record.removing or any(info.open for info in record.ledgers):
        return True  # an owner before did not come to its end
    ledgers = record.ledger_list(folded)
    last = ledgers.last()
    subscriptions = [mark for name, mark in cursors.items() if not is_system_subscription(name)]
    if is_due(policies, rest_ms) and (
        all(mark >= last for mark in subscriptions)
        if policies.inactive.mode == CAUGHT_UP
        else not subscriptions
    ):
        return True
    minutes = policies.subscription_expiration_minutes
    if subscriptions and 0 < minutes * 60_000 <= rest_ms:
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


class TopicsAtRest:
    """Goes round all topics of the metadata store. See ``run``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._has_finished_deletions = False

    async def run(self) -> None:
        """One round. What fails of a topic concerns only that, and is tried in the next one."""
        if not self._has_finished_deletions:
            await self._finish_deletions()
        number = 0
        async for name, policies in self._topics():
            number += 1
            if number % _LOOKS_A_TURN == 0:
                await asyncio.sleep(_LOOKS_A_TURN / LOOKS_AT_REST_PER_SECOND)
            if self._broker.is_loading(name):
                continue
            try:
                if await self._has_work(name, policies):
                    await self._visit(name)
                    await asyncio.sleep(1 / VISITS_AT_REST_PER_SECOND)
            except Exception as error:
                log.warning("%s stays as it is for now: %s", name, error, exc_info=trace_of(error))

    async def _finish_deletions(self) -> None:
        """Go on with deletions that a process before this one did not bring to their end."""
        admin, resources = self._broker.topic_admin, self._broker.resources
        number = failed = 0
        for tenant in await resources.tenants.list():
            for namespace in await resources.namespaces.list(tenant):
                for name in await admin.stored_topics(namespace):
                    number += 1
                    if number % _LOOKS_A_TURN == 0:
                        await asyncio.sleep(_LOOKS_A_TURN / LOOKS_AT_REST_PER_SECOND)
                    try:
                        async with self._broker.ending(name):
                            if await admin.finish_deletion(name):
                                log.info("%s: its deletion came to its end", name)
                    except PulsarkError as error:
                        log.warning("%s is not deleted yet: %s", name, error)
                        failed += 1
        self._has_finished_deletions = not failed

    async def _topics(self) -> AsyncIterator[tuple[TopicName, TopicPolicies]]:
        """Topics of which something may become due, and what holds for them."""
        resources, settings = self._broker.resources, self._broker.settings
        for tenant in await resources.tenants.list():
            for namespace in await resources.namespaces.list(tenant):
                found = await resources.namespaces.get(namespace)
                if found is None:
                    continue
                shared = effective(settings, found.policies, {})
                with_own = set(await resources.topic_policies.list(namespace))
                if not forgets(shared) and not with_own:
                    continue
                parent = f"/managed-ledgers/{namespace}/persistent"
                for child in await self._broker.metadata.children(parent):
                    name = TopicName.parse(f"persistent://{namespace}/{unquote(child)}")
                    policies = shared
                    if name.base in with_own:
                        own = await resources.topic_policies.get(name.base)
                        policies = effective(settings, found.policies, own)
                    if forgets(policies):
                        yield name, policies

    async def _has_work(self, name: TopicName, policies: TopicPolicies) -> bool:
        path, metadata = managed_ledger_path(name), self._broker.metadata
        record = await read_record(path, metadata)
        folded = None if record is None else await read_runs(record, metadata)
        if record is None or folded is None:
            return False  # or it changes at this moment: then it is not at rest
        cursors = await self._broker.cursors_at_rest(name, record.topic_id)
        now_ms = self._broker.sure_clock.now_ms()
        rest = self._broker.clock.monotonic() - self._broker.at_rest_since
        return has_work(record, cursors, policies, now_ms, int(rest * 1000), folded)

    async def _visit(self, name: TopicName) -> None:
        async with self._broker.visit(name) as topic:
            if topic is not None:
                await catch_up(topic, self._broker)


async def catch_up(topic: Topic, broker: Broker) -> None:
    """Do what would have been done in time, had the topic been loaded."""
    topic.last_used = broker.at_rest_since
    for subscription in topic.subscriptions.values():
        subscription.idle_since = broker.at_rest_since
    topic.backlog.expire()
    await topic.backlog.enforce()
    await expire_subscriptions(topic)
    await topic.sync_cursors()  # only what is durable makes room
    await topic.retention.trim()
    await delete_if_unused(topic, broker.topic_admin)
