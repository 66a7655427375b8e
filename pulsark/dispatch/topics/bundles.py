"""Bundles by their names, like ``tenant/namespace/0x00000000_0x40000000``. Pure."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

from pulsark.wire.hashes import bundle_hash
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.metadata.namespaces import Namespace

_LAST = 0xFFFFFFFF
"""The end of the last bundle, which is in it."""


class NamespaceBundles:
    """The bundles of one namespace, as they were when it was read."""

    def __init__(self, namespace: Namespace) -> None:
        self._name = namespace.name
        self._edges = _edges(namespace.bundle_boundaries)

    def range_of(self, name: TopicName) -> str:
        """The range that a topic is in."""
        at = min(bisect_right(self._edges, bundle_hash(str(name))), len(self._edges) - 1)
        return f"0x{self._edges[at - 1]:08x}_0x{self._edges[at]:08x}"

    def of(self, name: TopicName) -> str:
        """The bundle that a topic is in."""
        return f"{self._name}/{self.range_of(name)}"


@lru_cache(maxsize=1000)
def _edges(boundaries: tuple[str, ...]) -> tuple[int, ...]:
    """As numbers: each lookup of a topic asks for them."""
    return tuple(int(edge, 16) for edge in boundaries)


def namespace_of(bundle: str) -> str:
    """The namespace that a bundle is part of."""
    return bundle.rpartition("/")[0]


class Covered:
    """Whether topics are in a bundle."""

    def __init__(self, bundle: str) -> None:
        self.namespace, _, edges = bundle.rpartition("/")
        self.low, self.high = (int(edge, 16) for edge in edges.split("_"))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, TopicName) or name.namespace_name != self.namespace:
            return False
        point = bundle_hash(str(name))
        return self.low <= point < self.high or point == self.high == _LAST
