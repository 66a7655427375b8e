"""Writes the events of the audit to its topic, ``persistent://pulsar/system/audit``.

``writer.AuditWriter`` takes events in order, makes records of them and gives them to
``publisher.AuditPublisher``, the broker's own producer. Clients wait for neither: events that
storage does not take stay in memory, and those beyond a limit are dropped and counted
(``security.audit``). The writer is not a client, so its own work is not audited.

``anywhere.AuditAnywhere`` sends the records to the broker that owns the topic, if that is another
one; ``for_others.AuditForOthers`` publishes them there. ``left_over.AuditLeftOver`` keeps what
could not be written before a stop.

Imported only where the audit is on.
"""
