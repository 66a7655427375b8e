"""What it needs to read and to write each policy, by its name in paths."""

from __future__ import annotations

from pulsark.admin.http.guard import Asked, Need, Path, of_path
from pulsark.security.operations import GeneralOperation, Operation, PolicyOperation, TargetKind

GROUPS = {
    "allowedClusters": "ALLOW_CLUSTERS",
    "antiAffinity": "ANTI_AFFINITY",
    "autoSubscriptionCreation": "AUTO_SUBSCRIPTION_CREATION",
    "autoTopicCreation": "AUTO_TOPIC_CREATION",
    "compactionThreshold": "COMPACTION",
    "deduplication": "DEDUPLICATION",
    "deduplicationEnabled": "DEDUPLICATION",
    "deduplicationSnapshotInterval": "DEDUPLICATION_SNAPSHOT",
    "delayedDelivery": "DELAYED_DELIVERY",
    "dispatchRate": "RATE",
    "dispatcherPauseOnAckStatePersistent": "DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT",
    "encryptionRequired": "ENCRYPTION",
    "entryFilters": "ENTRY_FILTERS",
    "inactiveTopicPolicies": "INACTIVE_TOPIC",
    "isAllowAutoUpdateSchema": "SCHEMA_COMPATIBILITY_STRATEGY",
    "maxConsumers": "MAX_CONSUMERS",
    "maxConsumersPerSubscription": "MAX_CONSUMERS",
    "maxConsumersPerTopic": "MAX_CONSUMERS",
    "maxProducers": "MAX_PRODUCERS",
    "maxProducersPerTopic": "MAX_PRODUCERS",
    "maxSubscriptionsPerTopic": "MAX_SUBSCRIPTIONS",
    "maxTopicsPerNamespace": "MAX_TOPICS",
    "maxUnackedMessagesOnConsumer": "MAX_UNACKED",
    "maxUnackedMessagesOnSubscription": "MAX_UNACKED",
    "maxUnackedMessagesPerConsumer": "MAX_UNACKED",
    "maxUnackedMessagesPerSubscription": "MAX_UNACKED",
    "messageTTL": "TTL",
    "offloadDeletionLagMs": "OFFLOAD",
    "offloadPolicies": "OFFLOAD",
    "offloadThreshold": "OFFLOAD",
    "offloadThresholdInSeconds": "OFFLOAD",
    "persistence": "PERSISTENCE",
    "publishRate": "RATE",
    "replication": "REPLICATION",
    "replicatorDispatchRate": "REPLICATION_RATE",
    "resourcegroup": "RESOURCEGROUP",
    "retention": "RETENTION",
    "schemaAutoUpdateCompatibilityStrategy": "SCHEMA_COMPATIBILITY_STRATEGY",
    "schemaCompatibilityStrategy": "SCHEMA_COMPATIBILITY_STRATEGY",
    "schemaValidationEnforced": "SCHEMA_COMPATIBILITY_STRATEGY",
    "sealing": "SEALING",
    "storageQuota": "BACKLOG",
    "subscribeRate": "RATE",
    "subscriptionAuthMode": "SUBSCRIPTION_AUTH_MODE",
    "subscriptionDispatchRate": "RATE",
    "subscriptionExpirationTime": "SUBSCRIPTION_EXPIRATION_TIME",
    "subscriptionTypesEnabled": "SUBSCRIPTION_AUTH_MODE",
    "tableRetention": "RETENTION",
}
"""Pulsar's groups of policies. They are for the tenant's administrators, except those of
``_WRITTEN_BY_SUPER_USERS``; the names are for logs."""

_OF_NAMESPACES: dict[str, GeneralOperation] = {
    "persistence/bookieAffinity": GeneralOperation.SUPER_USER,
    "properties": GeneralOperation.ADMINISTER_TENANT,
}
_OF_TOPICS: dict[str, GeneralOperation] = {"maxMessageSize": GeneralOperation.ADMINISTER_TENANT}
"""Policies that are in no group."""
_WRITTEN_BY_SUPER_USERS = ("delayedDelivery", "resourcegroup")
"""The first as in Pulsar. A resource group has limits that its members share, so who joins it takes
from other tenants, and who leaves it evades what the operator has set."""


def operation_on(kind: TargetKind, name: str, *, writes: bool) -> Operation:
    """What it is to read or write a policy."""
    if kind is TargetKind.NAMESPACE_POLICY and name in _WRITTEN_BY_SUPER_USERS and writes:
        return GeneralOperation.SUPER_USER
    without = _OF_NAMESPACES if kind is TargetKind.NAMESPACE_POLICY else _OF_TOPICS
    return without.get(name) or PolicyOperation(GROUPS[name], writes, kind)


def needs_super_user(policy: str) -> bool:
    """Return whether only super users write a policy of namespaces, given its name in paths."""
    written = operation_on(TargetKind.NAMESPACE_POLICY, policy, writes=True)
    return written is GeneralOperation.SUPER_USER


def _of_name_in_path(kind: TargetKind) -> Need:
    def asked(method: str, path: Path) -> list[Asked]:
        operation = operation_on(kind, path["policy"], writes=method != "GET")
        return [(operation, of_path(path))]

    return Need(asked)


NAMESPACE_POLICY = _of_name_in_path(TargetKind.NAMESPACE_POLICY)
TOPIC_POLICY = _of_name_in_path(TargetKind.TOPIC_POLICY)
"""What the routes of all policies need."""
