"""Who reads and writes which topics, for an audit that wants to know. Imported only with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.security.decisions import Target

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection
    from pulsark.security.audit.audit import Audit
    from pulsark.wire.topic_name import TopicName


def note_access(audit: Audit, connection: Connection, action: str, topic: TopicName) -> None:
    """The client publishes to a topic now, or reads it."""
    if audit.notes_access:
        target = Target.of_topic(topic)
        audit.accessed(connection.origin, connection.principal, action, target)
