"""What a broker does without being asked: chores, each at its own interval.

A chore looks at loaded topics only. Those that nobody uses are not in memory, and have a slow chore
of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.at_rest import TopicsAtRest
from pulsark.dispatch.inactivity import delete_if_unused, expire_subscriptions
from pulsark.dispatch.turns import in_turns
from pulsark.errors import trace_of
from pulsark.limits import UNUSED_NON_PERSISTENT_TOPIC_SECONDS
from pulsark.storage.ledger_deletion import delete_noted

if TYPE_CHECKING:
    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.topic import Topic

log = logging.getLogger(__name__)

LOST_CHECK_SECONDS = 1.0
ROLL_OVER_CHECK_SECONDS = 60.0
DELETED_CHECK_SECONDS = 60.0

Visit = Callable[["Topic"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to be done again and again, the first time after one interval."""

    name: str
    seconds: float
    run: Callable[[], Awaitable[None]]


class Upkeep:
    """Runs the chores of a broker. One that fails is tried again when its time comes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        self._tasks = [asyncio.create_task(self._repeat(chore)) for chore in self._chores()]

    def close(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()

    @property
    def running(self) -> bool:
        """Whether every chore is still looked after."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    def _chores(self) -> list[Chore]:
        settings = self._broker.settings
        every = partial(each_topic, self._broker)
        chores = [
            Chore("lost topics", LOST_CHECK_SECONDS, self._broker.drop_lost),
            Chore(
                "unused non-persistent topics",
                UNUSED_NON_PERSISTENT_TOPIC_SECONDS,
                self._broker.non_persistent.drop_unused,
            ),
            Chore(
                "ledgers of deleted topics",
                DELETED_CHECK_SECONDS,
                partial(delete_noted, self._broker.ledgers, self._broker.metadata),
            ),
            Chore("full ledgers", ROLL_OVER_CHECK_SECONDS, partial(every, _roll_over)),
            Chore("retention", settings.retentionCheckIntervalInSeconds, partial(every, _trim)),
            Chore(
                "expiry", settings.messageExpiryCheckIntervalInMinutes * 60, partial(every, _expire)
            ),
            Chore(
                "deduplication",
                settings.brokerDeduplicationSnapshotFrequencyInSeconds,
                partial(every, _look_after_deduplication),
            ),
            Chore(
                "compaction",
                settings.brokerServiceCompactionMonitorIntervalInSeconds,
                partial(every, _compact),
            ),
            Chore(
                "unused topics",
                settings.brokerDeleteInactiveTopicsFrequencySeconds,
                partial(every, self._delete_if_unused),
            ),
            Chore(
                "unused subscriptions",
                settings.subscriptionExpiryCheckIntervalInMinutes * 60,
                partial(every, expire_subscriptions),
            ),
        ]
        if settings.topicsAtRestCheckIntervalInSeconds:
            chores.append(
                Chore(
                    "topics at rest",
                    settings.topicsAtRestCheckIntervalInSeconds,
                    TopicsAtRest(self._broker).run,
                )
            )
        if settings.backlogQuotaCheckEnabled:
            chores.append(
                Chore(
                    "backlog quotas",
                    settings.backlogQuotaCheckIntervalInSeconds,
                    partial(every, enforce_quotas),
                )
            )
        return chores

    async def _delete_if_unused(self, topic: Topic) -> None:
        await delete_if_unused(topic, self._broker.topic_admin)

    @staticmethod
    async def _repeat(chore: Chore) -> None:
        while True:
            await asyncio.sleep(chore.seconds)
            try:
                await chore.run()
            except Exception:
                log.exception("%s: tried again in %s s", chore.name, chore.seconds)


async def each_topic(broker: Broker, visit: Visit) -> None:
    """Visit every loaded topic, one after the other; a failure concerns only its own."""
    async for topic in in_turns(broker.loaded_topics()):
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
    """Close a ledger that is full or old enough although nobody appends to it."""
    if not topic.ledger.is_terminated:
        await topic.ledger.roll_over_if_due()


async def _compact(topic: Topic) -> None:
    topic.compactor.start_if_due()


async def _trim(topic: Topic) -> None:
    await topic.retention.trim()


async def _expire(topic: Topic) -> None:
    topic.backlog.expire()


async def enforce_quotas(topic: Topic) -> None:
    """What the policy says about a backlog that is too large."""
    await topic.backlog.enforce()
