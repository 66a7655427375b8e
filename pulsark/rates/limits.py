"""Bounds of what rates hold back. `pulsark.limits` says what belongs here."""

from __future__ import annotations

PUBLISH_HOLD_SECONDS_MAX = 30.0
"""The longest time a rate keeps a connection from being read, and the most debt a rate counts. A
client's other commands wait behind its publishes."""

NEW_PUBLISHERS_WAIT_FROM_SECONDS = 5.0
"""New producers wait before their first publish if a rate is this far in debt."""

THROTTLED_AT_ONCE_MAX = 128
"""Connections released in one step: a millisecond."""

LASTING_THROTTLE_SECONDS = 10.0
"""A publish rate that has held a connection back for this time is recorded in the audit."""

LASTING_THROTTLE_TOLD_SECONDS = 60.0
"""It is recorded again after this time if connections are still held back."""
