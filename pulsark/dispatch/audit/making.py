"""The audit of a broker, and what writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.audit.publisher import AuditPublisher
from pulsark.dispatch.audit.writer import AuditWriter
from pulsark.security.audit.audit import Audit

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.dispatch.policies.schemas import Schemas
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.creation import TopicCreation
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.resources import Resources
    from pulsark.runtime import Clock


def make_audit(
    settings: Settings,
    clock: Clock,
    resources: Resources,
    catalog: TopicCatalog,
    creation: TopicCreation,
    topics: Topics,
    schemas: Schemas,
) -> tuple[Audit, AuditWriter]:
    """Both; the writer has to be started."""
    name = settings.advertisedAddress
    audit = Audit(clock, settings.clusterName, name, notes_access=settings.auditDataAccess)
    publisher = AuditPublisher(settings, clock, resources, catalog, creation, topics, schemas, name)
    return audit, AuditWriter(audit, publisher, clock)
