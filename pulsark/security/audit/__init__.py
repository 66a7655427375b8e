"""The record of who did what: events, in order, in a chain, bounded in number. No I/O.

Start with ``audit.Audit``, to which the ports report: it never waits and never fails. ``events``
makes the events, with the names of OCSF where they fit. ``sums`` counts equal denials instead of
recording each, and ``events_waiting`` keeps a bounded number until they are written. ``chain``
numbers the events, ties each to the one before, and verifies that. ``definition`` is the schema
of the topic, so its table has columns.

Events contain no credentials: a token is named by its ``jti`` or by a digest. Roles are named as
they are. This room is imported only where the audit is on; ``dispatch.audit`` writes the events.
"""
