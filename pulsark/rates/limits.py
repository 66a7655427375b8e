"""Bounds of what rates hold back. `pulsark.limits` says what belongs here."""

from __future__ import annotations

PUBLISH_HOLD_SECONDS_MAX = 30.0
"""Longest time in a row that a connection is not read because of a rate, and the most debt that a
rate counts. What the client sent behind its publishes waits with them."""

NEW_PUBLISHERS_WAIT_FROM_SECONDS = 5.0
"""New producers wait before their first publish if a rate is this far in debt."""

THROTTLED_AT_ONCE_MAX = 128
"""Connections released in one step: a millisecond."""

LASTING_THROTTLE_SECONDS = 10.0
"""A publish rate that has held a connection back for this time is recorded in the audit."""

LASTING_THROTTLE_TOLD_SECONDS = 60.0
"""It is recorded again after this time if it still does."""
