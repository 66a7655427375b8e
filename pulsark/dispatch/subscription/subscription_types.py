"""The subscription types there are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_type import (
    PlaceTakenError,
    SubscriptionType,
    SubType,
    TypeSpec,
)
from pulsark.dispatch.subscription.exclusive import Exclusive
from pulsark.dispatch.subscription.failover import Failover
from pulsark.dispatch.subscription.hash_ranges import AutoSplitRanges, StickyRanges
from pulsark.dispatch.subscription.hash_ring import HashRing
from pulsark.dispatch.subscription.key_shared import ConsumerSelector, KeyShared
from pulsark.dispatch.subscription.shared import Shared
from pulsark.errors import ClientError, ServerError
from pulsark.limits import LOOK_AHEAD_ENTRIES_MAX

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.members import Members
    from pulsark.wire.topic_name import TopicName


def new_type(spec: TypeSpec, topic: TopicName, settings: Settings) -> SubscriptionType:
    """A type without consumers, for a subscription of ``topic``."""
    if spec.sub_type == SubType.Exclusive:
        return Exclusive()
    if spec.sub_type == SubType.Failover:
        by_number = not settings.activeConsumerFailoverConsistentHashing
        return Failover(str(topic), topic.partition if by_number else -1)
    if spec.sub_type == SubType.Shared:
        # What is not stored is sent as it comes: there is nothing to collect for a turn.
        return Shared(settings.dispatcherMaxRoundRobinBatchSize if topic.is_persistent else 1)
    # It is not acknowledged either: no slot would ever be drained.
    ordered = topic.is_persistent and not spec.allow_out_of_order
    return KeyShared(_selector(spec, settings), partial(look_ahead, settings), ordered=ordered)


def change_type(
    name: str, members: Members, spec: TypeSpec, topic: TopicName, settings: Settings
) -> bool:
    """Change the type of the subscription ``name``, unless it is of that type already.

    Returns whether it was changed. With consumers connected it cannot be: ``ClientError``.
    """
    current = members.type
    if members.spec == spec:
        return False
    if current.consumer_count:
        message = (
            f"Subscription {name} is of type {members.spec}, not {spec}; "
            "close its consumers to change that"
        )
        if current.active is not None:
            raise PlaceTakenError(ServerError.ConsumerBusy, message, current.active)
        raise ClientError(ServerError.ConsumerBusy, message)
    members.type = new_type(spec, topic, settings)
    members.spec = spec
    return True


def _selector(spec: TypeSpec, settings: Settings) -> ConsumerSelector:
    if spec.sticky:
        return StickyRanges()
    if settings.subscriptionKeySharedUseConsistentHashing:
        return HashRing(settings.subscriptionKeySharedConsistentHashingReplicaPoints)
    return AutoSplitRanges()


def look_ahead(settings: Settings, consumers: int) -> int:
    """Entries of a Key_Shared subscription that may wait while new ones are read."""
    limits = [
        settings.keySharedLookAheadMsgInReplayThresholdPerConsumer * consumers,
        settings.keySharedLookAheadMsgInReplayThresholdPerSubscription,
    ]
    if not any(limits):
        limits = [
            settings.maxUnackedMessagesPerConsumer * consumers,
            settings.maxUnackedMessagesPerSubscription,
        ]
    return min((limit for limit in limits if limit > 0), default=LOOK_AHEAD_ENTRIES_MAX)
