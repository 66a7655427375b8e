"""Settings that can be changed while brokers run.

Every part of a broker has its one ``Settings`` and reads these from it when it needs them. So a
change is made in that object, which is frozen for everybody else, and only here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pulsark.config.keys import key_index
from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.config.settings import Settings

DYNAMIC: Final = frozenset(
    {
        "allowAutoSubscriptionCreation",
        "allowAutoTopicCreation",
        "allowAutoTopicCreationType",
        "backlogQuotaDefaultLimitBytes",
        "backlogQuotaDefaultLimitSecond",
        "backlogQuotaDefaultRetentionPolicy",
        "brokerDeleteInactiveTopicsEnabled",
        "brokerDeleteInactiveTopicsMode",
        "brokerMaxConnections",
        "brokerMaxConnectionsPerIp",
        "brokerPublisherThrottlingMaxByteRate",
        "brokerPublisherThrottlingMaxMessageRate",
        "defaultNumPartitions",
        "dispatchThrottlingRatePerSubscriptionInByte",
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "dispatchThrottlingRatePerTopicInByte",
        "dispatchThrottlingRatePerTopicInMsg",
        "dispatchThrottlingRateRelativeToPublishRate",
        "forceDeleteNamespaceAllowed",
        "forceDeleteTenantAllowed",
        "isAllowAutoUpdateSchemaEnabled",
        "loadBalancerAutoBundleSplitEnabled",
        "loadBalancerAutoUnloadSplitBundlesEnabled",
        "loadBalancerBrokerThresholdShedderPercentage",
        "loadBalancerNamespaceBundleMaxBandwidthMbytes",
        "loadBalancerNamespaceBundleMaxMsgRate",
        "loadBalancerNamespaceBundleMaxSessions",
        "loadBalancerNamespaceBundleMaxTopics",
        "loadBalancerNamespaceMaximumBundles",
        "loadBalancerSheddingEnabled",
        "loadBalancerSheddingGracePeriodMinutes",
        "maxConcurrentLookupRequest",
        "maxConsumersPerSubscription",
        "maxConsumersPerTopic",
        "maxNamespacesPerTenant",
        "maxNumPartitionsPerPartitionedTopic",
        "maxProducersPerTopic",
        "maxPublishRatePerTopicInBytes",
        "maxPublishRatePerTopicInMessages",
        "maxSubscriptionsPerTopic",
        "maxTenants",
        "maxTopicsPerNamespace",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesPerSubscription",
        "schemaCompatibilityStrategy",
        "subscribeRatePeriodPerConsumerInSecond",
        "subscribeThrottlingRatePerConsumer",
        "subscriptionTypesEnabled",
        "ttlDurationDefaultInSeconds",
    }
)

VALUE_CHARS_MAX = 1000


def changed_by(settings: Settings, texts: Mapping[str, str]) -> Settings:
    """The settings with others for what ``texts`` says. Raises ``ConfigError`` with the reason."""
    keys = key_index()
    values = {}
    for name, text in texts.items():
        if name not in DYNAMIC:
            raise ConfigError(f"{name[:100]} cannot be changed while the broker runs")
        if not text.strip():
            raise ConfigError(f"{name}: {keys[name].allowed()} is allowed, and not nothing")
        if len(text) > VALUE_CHARS_MAX:
            raise ConfigError(f"{name}: a value has at most {VALUE_CHARS_MAX} characters")
        values[name] = keys[name].parse(text)
    return dataclasses.replace(settings, **values)  # type: ignore[arg-type]


def take_over(settings: Settings, wanted: Settings) -> bool:
    """Make the dynamic settings what they are in ``wanted``; whether that changes any."""
    differing = {
        name: value
        for name in DYNAMIC
        if (value := getattr(wanted, name)) != getattr(settings, name)
    }
    for name, value in differing.items():
        object.__setattr__(settings, name, value)
    return bool(differing)
