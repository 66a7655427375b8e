"""What is noted of who did what: events, in order, in a chain, and never too many. No I/O.

Start with ``audit.Audit``, which the ports tell what happened: it never waits and never fails.
``events`` makes events of that, with the names of OCSF where they fit. ``sums`` counts equal
denials in place of noting each, and ``events_waiting`` keeps a bounded number until they are
written. ``chain`` numbers them and ties each to the one before, and checks that. ``definition`` is
the schema of the topic, so its table has columns.

No event has credentials in it: a token is named by its ``jti`` or by a digest. Names of roles are
there as they are.

This room is imported only where the audit is on; ``dispatch.audit`` writes what waits here.
"""
