"""What is kept with a cursor beside positions: a subscription's properties, and one flag.

The flag, whether the subscription's state is replicated between clusters, is a property of the
cursor under Pulsar's name for it. No client sees it as a property, or can set it as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPLICATED = "pulsar.replicated.subscription"


def cursor_properties(given: Mapping[str, str], *, replicated: bool) -> dict[str, str]:
    """The properties of a cursor, from what a client gave and the flag."""
    return given_properties(given) | ({_REPLICATED: "1"} if replicated else {})


def given_properties(stored: Mapping[str, str]) -> dict[str, str]:
    """What a client gave, from the properties of a cursor."""
    return {key: value for key, value in stored.items() if key != _REPLICATED}


def is_replicated(stored: Mapping[str, str]) -> bool:
    """The flag, from the properties of a cursor."""
    return _REPLICATED in stored
