"""The subscription types there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.exclusive import Exclusive
from pulsark.dispatch.failover import Failover
from pulsark.dispatch.shared import Shared
from pulsark.dispatch.subscription_type import SubscriptionType, SubType
from pulsark.errors import ClientError, ServerError

if TYPE_CHECKING:
    from pulsark.config import Settings
    from pulsark.wire.topic_name import TopicName


def new_type(sub_type: SubType, topic: TopicName, settings: Settings) -> SubscriptionType:
    """A type without consumers, for a subscription of ``topic``."""
    if sub_type == SubType.Exclusive:
        return Exclusive()
    if sub_type == SubType.Failover:
        return Failover(str(topic), topic.partition)
    if sub_type == SubType.Shared:
        # What is not stored is sent as it comes: there is nothing to collect for a turn.
        return Shared(settings.dispatcherMaxRoundRobinBatchSize if topic.is_persistent else 1)
    raise ClientError(ServerError.NotAllowedError, f"{sub_type.name} is not enabled")
