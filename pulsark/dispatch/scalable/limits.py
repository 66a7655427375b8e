"""Bounds of what clients of Pulsar 5 ask for. `pulsark.limits` says what belongs here."""

from __future__ import annotations

# -- one connection --------------------------------------------------------------------------

SCALABLE_SESSIONS_PER_CONNECTION_MAX = 10_000
"""Most lookup sessions of one connection at a time."""

NAMESPACE_WATCHES_PER_CONNECTION_MAX = 100
"""Most namespaces that one connection watches at a time."""

PROPERTY_FILTERS_CHARS_MAX = 10_000
"""Most characters in the property filters of a watch, which stay in memory."""

SCALABLE_CONSUMERS_PER_CONNECTION_MAX = 1000
"""Most group consumers of one connection."""

SCALABLE_SEGMENTS_PER_CONNECTION_MAX = 100_000
"""Most segments of the topics of these consumers. A topic counts once for each of its consumers,
because each takes some memory in its group."""

# -- groups ----------------------------------------------------------------------------------

GROUP_MEMBERS_MAX = 1000
"""Most consumers of one group."""

SEGMENT_HAND_OVER_SECONDS = 5.0
"""A consumer that has to give up a segment closes it within this time."""

SEGMENT_WAIT_SECONDS = 10.0
"""A consumer that comes before its segment is free waits this long."""

SHARE_REMINDER_SECONDS = 2.0
"""A consumer that has not subscribed to anything new in its share is sent the share again after
this time."""

SHARE_SILENCE_SECONDS = 3.0
"""If it is then on no segment at all after this further time, it counts as closed."""

SHARE_ASKED_AGAIN_SECONDS = 30.0
"""Then it is asked once more whether it is there, while there are segments for it."""

STREAM_CONSUMER_GRACE_SECONDS = 10.0
"""A consumer whose connection is lost keeps its segments for this time."""

HAND_OVER_CHECK_SECONDS = 0.25
"""Pause between two checks whether a segment that changes hands is free."""

HAND_OVER_CHECKS_MAX = 500
"""Segments inspected in each check: a millisecond."""

# -- layouts ---------------------------------------------------------------------------------

SEGMENTS_PER_TURN_MAX = 250
"""Segments of a layout encoded in one turn: a few milliseconds."""

LAYOUT_RETRY_SECONDS = 1.0
"""Pause before a layout that could not be read is read again."""
