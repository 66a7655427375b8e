"""What holds for one topic: its own policy, else its namespace's, else the broker's setting.

Keys and values of the given policies are those of Pulsar's admin API, as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsark.config import Settings


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The rules of one topic. A limit of 0 means no limit."""

    subscription_types: frozenset[str]
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    deduplication: bool
    schema_compatibility_strategy: str
    is_allow_auto_update_schema: bool
    schema_validation_enforced: bool


def effective(
    settings: Settings, namespace: Mapping[str, Any], topic: Mapping[str, Any]
) -> TopicPolicies:
    """The rules of a topic from what was set at each level."""

    def given(key: str, default: Any) -> Any:
        for level in (topic, namespace):
            value = level.get(key)
            if value is not None:
                return value
        return default

    return TopicPolicies(
        subscription_types=frozenset(
            given("subscription_types_enabled", ()) or settings.subscriptionTypesEnabled
        ),
        max_unacked_messages_per_consumer=given(
            "max_unacked_messages_per_consumer", settings.maxUnackedMessagesPerConsumer
        ),
        max_unacked_messages_per_subscription=given(
            "max_unacked_messages_per_subscription", settings.maxUnackedMessagesPerSubscription
        ),
        deduplication=given("deduplicationEnabled", settings.brokerDeduplicationEnabled),
        schema_compatibility_strategy=given("schema_compatibility_strategy", "UNDEFINED"),
        is_allow_auto_update_schema=given("is_allow_auto_update_schema", True),
        schema_validation_enforced=given("schema_validation_enforced", False),
    )
