"""What is done for loaded topics from time to time. Unloaded ones have slow chores of their own."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.chores import Chore
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.topics.inactivity import delete_if_unused, expire_subscriptions
from pulsark.errors import trace_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.deletion import TopicDeletion
    from pulsark.dispatch.topics.registry import Topics

    Visit = Callable[[Topic], Awaitable[None]]

log = logging.getLogger(__name__)

ROLL_OVER_CHECK_SECONDS = 60.0


def chores_of_topics(settings: Settings, topics: Topics, deletion: TopicDeletion) -> list[Chore]:
    """What every loaded topic is visited for."""
    visits: list[tuple[str, float, Visit]] = [
        ("full ledgers", ROLL_OVER_CHECK_SECONDS, _roll_over),
        ("retention", settings.retentionCheckIntervalInSeconds, _trim),
        ("expiry", settings.messageExpiryCheckIntervalInMinutes * 60, _expire),
        (
            "deduplication",
            settings.brokerDeduplicationSnapshotFrequencyInSeconds,
            _look_after_deduplication,
        ),
        ("compaction", settings.brokerServiceCompactionMonitorIntervalInSeconds, _compact),
        (
            "unused topics",
            settings.brokerDeleteInactiveTopicsFrequencySeconds,
            partial(delete_if_unused, deletion=deletion),
        ),
        (
            "unused subscriptions",
            settings.subscriptionExpiryCheckIntervalInMinutes * 60,
            expire_subscriptions,
        ),
    ]
    if settings.backlogQuotaCheckEnabled:
        visits.append(
            ("backlog quotas", settings.backlogQuotaCheckIntervalInSeconds, enforce_quotas)
        )
    return [
        Chore(name, seconds, partial(each_topic, topics, visit)) for name, seconds, visit in visits
    ]


async def each_topic(topics: Topics, visit: Visit) -> None:
    """Visit every loaded topic, one after the other; a failure concerns only its own."""
    async for topic in in_turns(topics.loaded()):
        if topic.closed:
            continue
        try:
            await visit(topic)
        except Exception as error:
            if not topic.closed:
                log.warning("%s: %s", topic.name, error, exc_info=trace_of(error))


async def _look_after_deduplication(topic: Topic) -> None:
    topic.deduplication_switch.look_after()


async def _roll_over(topic: Topic) -> None:
    """Close a ledger that is full or old enough although nothing is appended to it."""
    if not topic.ledger.is_terminated:
        await topic.ledger.close_ledger(only_full=True)


async def _compact(topic: Topic) -> None:
    topic.compactor.start_if_due()


async def _trim(topic: Topic) -> None:
    await topic.retention.trim()


async def _expire(topic: Topic) -> None:
    topic.backlog.expire()


async def enforce_quotas(topic: Topic) -> None:
    """What the policy says about a backlog that is too large."""
    await topic.backlog.enforce()
