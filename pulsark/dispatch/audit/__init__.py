"""Writes what the audit notes to its topic, ``persistent://pulsar/system/audit``.

``writer.AuditWriter`` takes events in order, makes records of them and gives them to
``publisher.AuditPublisher``, which is a producer of the broker's own. Clients never wait for
either: what storage does not take stays in memory, and what is too much for that is dropped and
counted (``security.audit``). What the writer does is no call of a client, so nothing of it is
audited.

Imported only where the audit is on.
"""
