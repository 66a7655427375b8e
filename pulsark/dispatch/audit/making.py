"""The audit of a broker, and what writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.audit.anywhere import AuditAnywhere
from pulsark.dispatch.audit.for_others import AuditForOthers
from pulsark.dispatch.audit.left_over import AuditLeftOver
from pulsark.dispatch.audit.publisher import AuditPublisher
from pulsark.dispatch.audit.writer import AuditWriter
from pulsark.security.audit.audit import Audit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.policies.schemas import Schemas
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.creation import TopicCreation
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock


def make_audit(
    settings: Settings,
    clock: Clock,
    metadata: MetadataStore,
    resources: Resources,
    catalog: TopicCatalog,
    creation: TopicCreation,
    topics: Topics,
    schemas: Schemas,
    peers: Callable[[], Peers | None],
) -> tuple[Audit, AuditWriter, AuditForOthers]:
    """All of it; the writer has to be started."""
    name = settings.advertisedAddress
    audit = Audit(clock, settings.clusterName, name, notes_access=settings.auditDataAccess)

    def publisher(whose: Callable[[], str]) -> AuditPublisher:
        return AuditPublisher(settings, clock, resources, catalog, creation, topics, schemas, whose)

    here = AuditAnywhere(publisher(lambda: audit.broker_name), peers)
    for_others = AuditForOthers(
        lambda broker: publisher(lambda: broker), settings.adminForwardTimeoutSeconds
    )
    left = AuditLeftOver(metadata, lambda: audit.broker_name)
    return audit, AuditWriter(audit, here, clock, left), for_others
