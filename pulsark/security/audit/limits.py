"""Bounds of the audit. `pulsark.limits` says what belongs here."""

from __future__ import annotations

# -- what is recorded ------------------------------------------------------------------------

AUDIT_TEXT_CHARS_MAX = 512
"""Longest text of a client in an event."""

AUDIT_BODY_BYTES_MAX = 4096
"""Most bytes of a request body that an event shows."""

AUDIT_EFFECTS_MAX = 100
"""Topics and subscriptions of which one request's events name the changes; more are counted."""

AUDIT_ACCESSES_MAX = 100_000
"""Accesses to data that the audit remembers having recorded today; the oldest is forgotten."""

AUDIT_SUM_SECONDS = 10.0
"""Equal denials are summed for at least this time: one event has their number."""

AUDIT_SUM_SECONDS_OF_KIND = 5.0
"""The time is at least this long for each kind of denial in it: a flood of kinds makes no flood of
events."""

AUDIT_SUM_SECONDS_MAX = 600.0
"""Longest time for which denials are summed."""

AUDIT_SUMMED_MAX = 1000
"""Kinds of denials that are told apart in that time."""

AUDIT_SUMMED_OF_HOST_MAX = 100
"""Kinds of denials of one role or address that are told apart; the rest are counted together."""

AUDIT_SUMMED_HOSTS_MAX = 1000
"""Roles and addresses whose denials are counted apart; the rest are counted together."""

# -- how it is written -----------------------------------------------------------------------

AUDIT_EVENTS_MAX = 10_000
"""Events that wait to be written; denials take at most half of the room."""

AUDIT_EVENTS_AT_ONCE = 100
"""Events on their way to storage at the same time."""

AUDIT_STUCK_SECONDS = 5.0
"""With `auditFailClosed`, requests are refused once an event has waited this long."""

AUDIT_RETRY_SECONDS = 1.0
"""Pause before the audit topic is tried again. It doubles with each failure."""

AUDIT_RETRY_SECONDS_MAX = 30.0
"""Longest such pause."""

AUDIT_CALL_BYTES_MAX = 256 << 10
"""Records that a broker gives in one call to the one that has the topic; one may be larger."""

AUDIT_BROKERS_MAX = 100
"""Brokers for which another one publishes; whoever came first has to come again."""

AUDIT_CLOSE_SECONDS = 5.0
"""A broker that stops waits at most this long for the audit to be written."""

AUDIT_LEFT_BYTES_MAX = 512 << 10
"""Room for what a broker could not write before it stopped, in the metadata store."""

AUDIT_KEEP_SECONDS = 2.0
"""It waits at most this long until that is kept."""

AUDIT_HEAD_SEARCH_MAX = 2000
"""Entries read from the end of the audit topic to find the last record of one broker. Those of
others may be behind it."""

AUDIT_HEAD_TRIES = 6
"""Attempts to read them, over about half a minute."""

AUDIT_LOGGED_SECONDS = 86_400.0
"""The digest of the last record is logged once in this time."""
