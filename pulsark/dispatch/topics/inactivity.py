"""Unused topics and subscriptions: which they are, and their end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.limits import UNUSED_NON_PERSISTENT_TOPIC_SECONDS
from pulsark.metadata.resources import is_system_topic

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.subscription.subscription import Subscription
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.deletion import TopicDeletion
    from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

CAUGHT_UP = "delete_when_subscriptions_caught_up"


def is_due(policies: TopicPolicies, unused_ms: int) -> bool:
    """Whether a topic is to be deleted that was unused for ``unused_ms``. Pure.

    What retention keeps by time is kept with its topic: for ever, if it is without limit.
    """
    kept = [policies.retention_minutes]
    if policies.sealing.enabled:
        kept.append(policies.table_retention_minutes)
    if not policies.inactive.delete or min(kept) < 0:
        return False
    return unused_ms >= max(policies.inactive.seconds * 1000, max(kept) * 60_000)


def is_in_use(topic: Topic) -> bool:
    """Whether a topic has clients, or subscriptions of the kind that its policy respects."""
    if topic.is_used:
        return True
    if topic.policies.inactive.mode == CAUGHT_UP:
        return any(subscription.backlog for subscription in topic.subscriptions.values())
    return bool(topic.subscriptions)


async def delete_if_unused(topic: Topic, deletion: TopicDeletion) -> None:
    """Delete a topic that has been unused for as long as its policy says."""
    if is_system_topic(str(topic.name)):
        return
    if is_in_use(topic):
        topic.touch()
    elif _is_unwanted(topic):
        log.info("%s is inactive: deleting it, as its policy says", topic.name)
        await deletion.delete_loaded(topic, _is_unwanted)
        await delete_partitioned_if_empty(topic.name, deletion, topic.settings)


def _is_unwanted(topic: Topic) -> bool:
    unused_ms = int((topic.clock.monotonic() - topic.last_used) * 1000)
    return not is_in_use(topic) and is_due(topic.policies, unused_ms)


async def delete_partitioned_if_empty(
    partition: TopicName, deletion: TopicDeletion, settings: Settings
) -> None:
    """An unused partition was deleted: the topic goes with the last one, if it may."""
    if partition.partition >= 0 and settings.brokerDeleteInactivePartitionedTopicMetadataEnabled:
        await deletion.delete_partitioned_if_empty(partition.base)


async def drop_unused(
    topics: NonPersistentTopics,
    deletion: TopicDeletion,
    settings: Settings,
    clock: Clock,
    *,
    alone: bool,
) -> None:
    """Delete non-persistent topics that were unused for a while.

    Unless the broker is ``alone``, others may have partitions in memory: their topic stays.
    """
    oldest = clock.monotonic() - UNUSED_NON_PERSISTENT_TOPIC_SECONDS
    for topic in topics.all():
        if not topic.is_used and topic.last_used <= oldest:
            log.debug("%s is not used any more", topic.name)
            await topics.close(topic.name)
            if alone:
                await delete_partitioned_if_empty(topic.name, deletion, settings)


async def expire_subscriptions(topic: Topic) -> None:
    """Delete the durable subscriptions that were unused for as long as the policy says."""
    for subscription in topic.backlog.subscriptions:
        if _is_expired(subscription) and await subscription.delete_if(_is_expired):
            log.info("%s: subscription %s expired", topic.name, subscription.name)


def _is_expired(subscription: Subscription) -> bool:
    """Whether it was unused for longer than the policy of this moment allows."""
    minutes = subscription.topic.policies.subscription_expiration_minutes
    return (
        minutes > 0
        and not subscription.type.consumer_count
        and subscription.idle_seconds() >= minutes * 60
    )
