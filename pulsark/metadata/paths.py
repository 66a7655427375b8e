"""Paths of the metadata store, as ``docs/formats/metadata.md`` lists them; spelled nowhere else.

Constants name the trees. What belongs to a topic is at ``<tree>/<tenant>/<namespace>/<domain>/
<topic>``, the local name quoted with nothing spared, so that a slash in it makes no level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from pulsark.wire.topic_name import PERSISTENT

if TYPE_CHECKING:
    from pulsark.wire.topic_name import TopicName

CLUSTERS: Final = "/admin/clusters"
POLICIES: Final = "/admin/policies"
"""Tenants are right below it, namespaces below their tenant."""
RESOURCE_GROUPS: Final = "/admin/resource-groups"
PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"
TOPIC_POLICIES: Final = "/admin/topic-policies"
"""Topics that have policies of their own are below it; partitions share those of their topic."""
MANAGED_LEDGERS: Final = "/managed-ledgers"
LEDGER_RUNS: Final = "/managed-ledger-runs"
LEDGERS: Final = "/ledgers"
REMOVED_LEDGERS: Final = "/removed-ledgers"
TABLES: Final = "/tables"
DOOMED_TABLES: Final = "/doomed-tables"
CURSORS: Final = "/cursors"
DELAYED_BUCKETS: Final = "/delayed-buckets"
SCHEMAS: Final = "/schemas"
BOOKIES: Final = "/bookies"
STORAGE_ROOTS: Final = "/storage-roots"
BUNDLE_OWNERS: Final = "/namespace"
BUNDLE_EPOCHS: Final = "/owners"
BROKERS: Final = "/loadbalance/brokers"
LEADER: Final = "/loadbalance/leader"
ASSIGNED_BUNDLES: Final = "/loadbalance/assigned"
BROKER_SECRET: Final = "/secrets/broker-calls"
LEDGER_ID_COUNTER: Final = "/counters/ledger-id"
PRODUCER_NAME_COUNTER: Final = "/counters/producer-name"


# -- topics ---


def topics_path(tree: str, namespace: str, domain: str = PERSISTENT) -> str:
    """The parent of what a tree has for each topic of a namespace."""
    return f"{tree}/{namespace}/{domain}"


def topic_below(namespace: str, child: str, domain: str = PERSISTENT) -> str:
    """The name of the topic whose path ends with ``child`` below a ``topics_path``."""
    return f"{domain}://{namespace}/{unquote(child)}"


def topic_path(tree: str, name: TopicName) -> str:
    """Where a tree has what belongs to a topic."""
    return f"{topics_path(tree, name.namespace_name, name.domain)}/{quote(name.local, safe='')}"


def topic_at(tree: str, path: str) -> str:
    """The inverse: the name of the topic to which ``path`` of a tree belongs.

    Raises ``ValueError`` for a path that is not in the tree, or not a topic's.
    """
    above, _, rest = path.partition(f"{tree}/")
    tenant, namespace, domain, child = rest.split("/")
    if above:
        raise ValueError(f"{path} is not in {tree}")
    return topic_below(f"{tenant}/{namespace}", child, domain)


def managed_ledger_path(name: TopicName) -> str:
    """Where the record of a topic partition is."""
    return topic_path(MANAGED_LEDGERS, name)


def delayed_buckets_path(name: TopicName) -> str:
    """Where it says which buckets of delayed messages a topic partition has."""
    return topic_path(DELAYED_BUCKETS, name)


def table_path(name: TopicName) -> str:
    """Where the record of a topic's table is; all partitions share it."""
    return topic_path(TABLES, name.base)


def sealed_ledger_path(table: str, ledger_id: int) -> str:
    """Where a sealed ledger's document is, below its table's record."""
    return f"{table}/{ledger_id}"


def doomed_table_path(table_id: str) -> str:
    """The record of a table that is to be deleted."""
    return f"{DOOMED_TABLES}/{table_id}"


def partitioned_topic_path(name: TopicName) -> str:
    """Where the number of a topic's partitions is."""
    return topic_path(PARTITIONED_TOPICS, name)


def topic_policies_path(base: TopicName) -> str:
    """Where a topic's own policies are."""
    return topic_path(TOPIC_POLICIES, base)


def namespace_schemas_path(namespace: str) -> str:
    """The parent of the schemas of a namespace's topics, of both domains."""
    return f"{SCHEMAS}/{namespace}"


def schemas_path(name: TopicName) -> str:
    """Where the versions of a topic's schema are, with the definitions below."""
    return f"{namespace_schemas_path(name.namespace_name)}/{quote(name.base.local, safe='')}"


# -- what is above topics ---


def cluster_path(name: str) -> str:
    """Where a cluster is."""
    return f"{CLUSTERS}/{name}"


def isolation_policies_path(cluster: str) -> str:
    """Where it says which brokers of a cluster may have which namespaces."""
    return f"{cluster_path(cluster)}/namespaceIsolationPolicies"


def policies_path(name: str) -> str:
    """Where a tenant is, or with ``tenant/namespace`` a namespace."""
    return f"{POLICIES}/{name}"


def policies_at(path: str) -> str:
    """The inverse: which tenant or namespace is at ``path``."""
    return path.removeprefix(f"{POLICIES}/")


def resource_group_path(name: str) -> str:
    """Where a resource group is."""
    return f"{RESOURCE_GROUPS}/{name}"


def resource_group_at(path: str) -> str:
    """The inverse: which group is at ``path``."""
    return path.removeprefix(f"{RESOURCE_GROUPS}/")


def cursors_path(bundle: str) -> str:
    """Where the record of a bundle's cursors is."""
    return f"{CURSORS}/{bundle}"


def bundle_owner_path(bundle: str) -> str:
    """Where the broker is named that owns a bundle."""
    return f"{BUNDLE_OWNERS}/{bundle}"


def bundle_epoch_path(bundle: str) -> str:
    """Where each claim of a bundle is counted."""
    return f"{BUNDLE_EPOCHS}/{bundle}"


def bundle_counted_at(path: str) -> str:
    """The inverse: the claims of which bundle are counted at ``path``."""
    return path.removeprefix(f"{BUNDLE_EPOCHS}/")


def bundle_owner_at(path: str) -> str:
    """The inverse: which bundle's owner is at ``path``."""
    return path.removeprefix(f"{BUNDLE_OWNERS}/")


def assigned_bundle_path(bundle: str) -> str:
    """Where the broker is named that is to claim a bundle which nobody owns."""
    return f"{ASSIGNED_BUNDLES}/{bundle}"


def assigned_bundle_at(path: str) -> str:
    """The inverse: which bundle is assigned at ``path``."""
    return path.removeprefix(f"{ASSIGNED_BUNDLES}/")


def broker_path(broker_id: str) -> str:
    """Where a live broker says what it is."""
    return f"{BROKERS}/{broker_id}"


# -- ledgers and disks ---


def ledger_path(ledger_id: int) -> str:
    """Where the record of a ledger is."""
    return f"{LEDGERS}/{ledger_id}"


def removed_ledger_path(ledger_id: int) -> str:
    """Where it is noted that a bookie has yet to hear of a ledger's deletion."""
    return f"{REMOVED_LEDGERS}/{ledger_id}"


def ledger_runs_path(topic_id: str) -> str:
    """The parent of a topic partition's folded ledgers."""
    return f"{LEDGER_RUNS}/{topic_id}"


def bookie_path(place: str) -> str:
    """Where the bookie of a place is named."""
    return f"{BOOKIES}/{place}"


def storage_root_path(root: str) -> str:
    """Where the identity of a storage root is."""
    return f"{STORAGE_ROOTS}/{quote(root, safe='')}"


def storage_root_at(child: str) -> str:
    """The inverse: the root whose path ends with ``child``."""
    return unquote(child)
