"""A subscription as one partition of a topic gets it from another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class GivenSubscription(NamedTuple):
    """A durable subscription, as a new partition gets it."""

    name: str
    properties: Mapping[str, str]
    replicated: bool
