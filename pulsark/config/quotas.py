"""The settings of quotas: how much of a broker one client, one tenant or all may use."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.authorization import AuthorizationSettings
from pulsark.config.spec import setting


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class QuotaSettings(AuthorizationSettings):
    """That part of ``Settings``, and what it needs."""

    maxTenants: int = setting(0, "count", "Most tenants; 0: no limit", ge=0)
    maxNamespacesPerTenant: int = setting(
        0, "count", "Most namespaces of a tenant; 0: no limit", ge=0
    )
    maxSameAddressProducersPerTopic: int = setting(
        0, "count", "Most producers of a topic from one address; 0: no limit", ge=0
    )
    maxSameAddressConsumersPerTopic: int = setting(
        0, "count", "Most consumers of a topic from one address; 0: no limit", ge=0
    )
    maxConcurrentLookupRequest: int = setting(
        50_000, "count", "Lookups answered at the same time; more are refused", ge=1
    )

    # -- publish rates -----------------------------------------------------------------------

    maxPublishRatePerTopicInMessages: int = setting(
        0, "1/s", "Messages published to a topic, unless a publishRate is set; 0: no limit", ge=0
    )
    maxPublishRatePerTopicInBytes: int = setting(
        0, "bytes/s", "Bytes published to a topic, unless a publishRate is set; 0: no limit", ge=0
    )
    brokerPublisherThrottlingMaxMessageRate: int = setting(
        0, "1/s", "Messages published to all topics together; 0: no limit", ge=0
    )
    brokerPublisherThrottlingMaxByteRate: int = setting(
        0, "bytes/s", "Bytes published to all topics together; 0: no limit", ge=0
    )

    # -- dispatch and subscribe rates, where neither the topic nor its namespace has its own ------

    dispatchThrottlingRateInMsg: int = setting(
        0, "1/s", "Most messages that the broker delivers in a second; 0 or -1: no limit", ge=-1
    )
    dispatchThrottlingRateInByte: int = setting(
        0, "bytes/s", "Most bytes that the broker delivers in a second; 0 or -1: no limit", ge=-1
    )
    dispatchThrottlingRatePerTopicInMsg: int = setting(
        0,
        "1/s",
        "Most messages of a topic that are delivered in a second; 0 or -1: no limit",
        ge=-1,
    )
    dispatchThrottlingRatePerTopicInByte: int = setting(
        0,
        "bytes/s",
        "Most bytes of a topic that are delivered in a second; 0 or -1: no limit",
        ge=-1,
    )
    dispatchThrottlingRatePerSubscriptionInMsg: int = setting(
        0, "1/s", "Most messages that a subscription delivers in a second; 0 or -1: no limit", ge=-1
    )
    dispatchThrottlingRatePerSubscriptionInByte: int = setting(
        0,
        "bytes/s",
        "Most bytes that a subscription delivers in a second; 0 or -1: no limit",
        ge=-1,
    )
    dispatchThrottlingRatePerReplicatorInMsg: int = setting(
        0, "1/s", "Most messages replicated in a second; 0 or -1: no limit", ge=-1, planned=True
    )
    dispatchThrottlingRatePerReplicatorInByte: int = setting(
        0, "bytes/s", "Most bytes replicated in a second; 0 or -1: no limit", ge=-1, planned=True
    )
    dispatchThrottlingRateRelativeToPublishRate: bool = setting(
        False,
        "",
        "Dispatch rates of topics and subscriptions are added to the topic's publish rate",
    )
    dispatchThrottlingOnNonBacklogConsumerEnabled: bool = setting(
        True, "", "Dispatch rates also apply to subscriptions that are caught up"
    )
    dispatchThrottlingOnBatchMessageEnabled: bool = setting(
        False, "", "A batch counts as one message in dispatch rates"
    )
    subscribeThrottlingRatePerConsumer: int = setting(
        0, "count", "How often a consumer may subscribe in a period; 0: no limit", ge=0
    )
    subscribeRatePeriodPerConsumerInSecond: int = setting(
        30, "s", "The period of subscribeThrottlingRatePerConsumer", ge=1
    )

    # -- HTTP --------------------------------------------------------------------------------

    httpRequestsLimitEnabled: bool = setting(
        False, "", "httpRequestsMaxPerSecond applies; more requests are answered with 429"
    )
    httpRequestsMaxPerSecond: float = setting(
        100.0, "1/s", "Most HTTP requests of all clients in a second", ge=0.001
    )
