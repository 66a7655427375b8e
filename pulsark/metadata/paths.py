"""All paths of the metadata store; ``docs/formats/metadata.md`` describes them.

Constants name the trees. A topic's documents are at ``<tree>/<tenant>/<namespace>/<domain>/
<topic>``. The local name is percent-encoded, slashes too, so that it is one level.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from pulsark.wire.topic_name import PERSISTENT

if TYPE_CHECKING:
    from pulsark.wire.topic_name import TopicName

CLUSTERS: Final = "/admin/clusters"
POLICIES: Final = "/admin/policies"
"""Tenants are children of it, and namespaces are children of their tenant."""
CONFIGURATION: Final = "/admin/configuration"
"""One value: the settings of all brokers that were changed while they ran."""
RESOURCE_GROUPS: Final = "/admin/resource-groups"
PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"
TOPIC_POLICIES: Final = "/admin/topic-policies"
"""Topics with policies of their own. Partitions share those of their topic."""
MANAGED_LEDGERS: Final = "/managed-ledgers"
LEDGER_RUNS: Final = "/managed-ledger-runs"
LEDGERS: Final = "/ledgers"
REMOVED_LEDGERS: Final = "/removed-ledgers"
TABLES: Final = "/tables"
DOOMED_TABLES: Final = "/doomed-tables"
SEALED_APART: Final = "/sealed-apart"
"""Topics that made trouble when they were sealed."""
CURSORS: Final = "/cursors"
DELAYED_BUCKETS: Final = "/delayed-buckets"
SCHEMAS: Final = "/schemas"
BOOKIES: Final = "/bookies"
BOOKKEEPER: Final = "/bookkeeper"
"""Which cluster of BookKeeper has the ledgers."""
STORAGE_ROOTS: Final = "/storage-roots"
BUNDLE_OWNERS: Final = "/namespace"
BUNDLE_EPOCHS: Final = "/owners"
FEATURE_LEVEL_OF_CLUSTER: Final = "/feature-level"
BROKERS: Final = "/loadbalance/brokers"
LEADER: Final = "/loadbalance/leader"
ASSIGNED_BUNDLES: Final = "/loadbalance/assigned"
AUDIT_LEFT: Final = "/audit"
"""By broker the events that it could not write before it stopped."""
MOVED_BUNDLES: Final = "/loadbalance/moved"
"""Bundles that leaders have moved not long ago."""
BROKER_SECRET: Final = "/secrets/broker-calls"
LEDGER_ID_COUNTER: Final = "/counters/ledger-id"
PRODUCER_NAME_COUNTER: Final = "/counters/producer-name"


# -- topics ---


def topics_path(tree: str, namespace: str, domain: str = PERSISTENT) -> str:
    """The parent, within a tree, of the documents of a namespace's topics."""
    return f"{tree}/{namespace}/{domain}"


def topic_below(namespace: str, child: str, domain: str = PERSISTENT) -> str:
    """The topic of a child of ``topics_path``."""
    return f"{domain}://{namespace}/{unquote(child)}"


def topic_path(tree: str, name: TopicName) -> str:
    """The document of a topic in a tree."""
    return f"{tree}/{name.tenant}/{name.namespace}/{name.domain}/{_quoted(name.local)}"


@lru_cache(maxsize=1024)
def _quoted(local: str) -> str:
    """A topic's own name as one level. A topic that is loaded has documents in several trees."""
    return quote(local, safe="")


def topic_at(tree: str, path: str) -> str:
    """The inverse: the topic of a path in a tree; ``ValueError`` if it is not a topic's path."""
    above, _, rest = path.partition(f"{tree}/")
    tenant, namespace, domain, child = rest.split("/")
    if above:
        raise ValueError(f"{path} is not in {tree}")
    return topic_below(f"{tenant}/{namespace}", child, domain)


def managed_ledger_path(name: TopicName) -> str:
    """The record of a topic partition."""
    return topic_path(MANAGED_LEDGERS, name)


def delayed_buckets_path(name: TopicName) -> str:
    """The list of a topic partition's buckets of delayed messages."""
    return topic_path(DELAYED_BUCKETS, name)


def table_path(name: TopicName) -> str:
    """The record of a topic's table, which all partitions share."""
    return topic_path(TABLES, name.base)


def sealed_ledger_path(table: str, ledger_id: int) -> str:
    """The document of a sealed ledger, below the record of its table."""
    return f"{table}/{ledger_id}"


def doomed_table_path(table_id: str) -> str:
    """The record of a table that is being deleted."""
    return f"{DOOMED_TABLES}/{table_id}"


def sealed_apart_path(base: TopicName) -> str:
    """What is remembered of a topic that is sealed apart from others."""
    return f"{SEALED_APART}/{quote(str(base), safe='')}"


def sealed_apart_at(child: str) -> TopicName:
    """The inverse: the topic of a child of ``SEALED_APART``."""
    from pulsark.wire.topic_name import TopicName

    return TopicName.parse(unquote(child))


def partitioned_topic_path(name: TopicName) -> str:
    """The record of a partitioned topic."""
    return topic_path(PARTITIONED_TOPICS, name)


def topic_policies_path(base: TopicName) -> str:
    """A topic's own policies."""
    return topic_path(TOPIC_POLICIES, base)


def namespace_schemas_path(namespace: str) -> str:
    """The parent of the schemas of a namespace's topics, of both domains."""
    return f"{SCHEMAS}/{namespace}"


def schemas_path(name: TopicName) -> str:
    """The versions of a topic's schema; their definitions are children."""
    return f"{namespace_schemas_path(name.namespace_name)}/{quote(name.base.local, safe='')}"


# -- clusters, namespaces, bundles ---


def cluster_path(name: str) -> str:
    """The record of a cluster."""
    return f"{CLUSTERS}/{name}"


def isolation_policies_path(cluster: str) -> str:
    """Where it says which brokers of a cluster may have which namespaces."""
    return f"{cluster_path(cluster)}/namespaceIsolationPolicies"


def policies_path(name: str) -> str:
    """The record of a tenant, or of a namespace ``tenant/namespace``."""
    return f"{POLICIES}/{name}"


def policies_at(path: str) -> str:
    """The inverse: the tenant or namespace at ``path``."""
    return path.removeprefix(f"{POLICIES}/")


def resource_group_path(name: str) -> str:
    """The record of a resource group."""
    return f"{RESOURCE_GROUPS}/{name}"


def resource_group_at(path: str) -> str:
    """The inverse: the group at ``path``."""
    return path.removeprefix(f"{RESOURCE_GROUPS}/")


def cursors_path(bundle: str) -> str:
    """The record of a bundle's cursors."""
    return f"{CURSORS}/{bundle}"


def bundle_owner_path(bundle: str) -> str:
    """The claim of the broker that owns a bundle."""
    return f"{BUNDLE_OWNERS}/{bundle}"


def bundle_epoch_path(bundle: str) -> str:
    """The record that each claim of a bundle writes."""
    return f"{BUNDLE_EPOCHS}/{bundle}"


def bundle_counted_at(path: str) -> str:
    """The inverse: the bundle at ``path``."""
    return path.removeprefix(f"{BUNDLE_EPOCHS}/")


def bundle_owner_at(path: str) -> str:
    """The inverse of ``bundle_owner_path``."""
    return path.removeprefix(f"{BUNDLE_OWNERS}/")


def assigned_bundle_path(bundle: str) -> str:
    """The broker that an unowned bundle is assigned to."""
    return f"{ASSIGNED_BUNDLES}/{bundle}"


def assigned_bundle_at(path: str) -> str:
    """The inverse: the bundle that is assigned at ``path``."""
    return path.removeprefix(f"{ASSIGNED_BUNDLES}/")


def broker_path(broker_id: str) -> str:
    """The announcement of a live broker."""
    return f"{BROKERS}/{broker_id}"


def audit_left_path(broker: str) -> str:
    """What is left of a broker's audit."""
    return f"{AUDIT_LEFT}/{quote(broker, safe='')}"


# -- ledgers and disks ---


def ledger_path(ledger_id: int) -> str:
    """The record of a ledger."""
    return f"{LEDGERS}/{ledger_id}"


def removed_ledger_path(ledger_id: int) -> str:
    """A deleted ledger that some bookie may still have."""
    return f"{REMOVED_LEDGERS}/{ledger_id}"


def ledger_runs_path(topic_id: str) -> str:
    """The parent of a topic partition's folded ledgers."""
    return f"{LEDGER_RUNS}/{topic_id}"


def bookie_path(place: str) -> str:
    """The bookie of a place in the fleet."""
    return f"{BOOKIES}/{place}"


def storage_root_path(root: str) -> str:
    """The identity of a storage root."""
    return f"{STORAGE_ROOTS}/{quote(root, safe='')}"


def storage_root_at(child: str) -> str:
    """The storage root of a child of ``STORAGE_ROOTS``."""
    return unquote(child)
