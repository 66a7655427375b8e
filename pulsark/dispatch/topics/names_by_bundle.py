"""Names of topics, found by the bundle that they are in: what is elsewhere is not looked at.

Bundles may be split at any point, so names are not kept by bundle but by slices of the namespace's
hash space. A bundle is a number of slices, and of those at its ends a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.wire.hashes import bundle_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.dispatch.topics.bundles import Covered
    from pulsark.wire.topic_name import TopicName

_SLICE_BITS = 24
"""A slice is this wide: there are 256 in a namespace."""


class NamesByBundle:
    """The names of one broker's topics. Adding and removing one takes constant time."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[int, dict[TopicName, None]]] = {}
        """By namespace and number of the slice; none of them is empty."""

    def add(self, name: TopicName) -> None:
        """A name is there, if it was not already."""
        slices = self._slices.setdefault(name.namespace_name, {})
        slices.setdefault(_slice_of(name), {})[name] = None

    def discard(self, name: TopicName) -> None:
        """A name is not there any more, if it was."""
        slices = self._slices.get(name.namespace_name, {})
        at = _slice_of(name)
        names = slices.get(at, {})
        if name not in names:
            return
        del names[name]
        if not names:
            del slices[at]
        if not slices:
            del self._slices[name.namespace_name]

    def clear(self) -> None:
        """There is none."""
        self._slices.clear()

    def inside(self, bundle: Covered) -> Iterator[TopicName]:
        """The names in a bundle. Do not add or remove any while iterating."""
        slices = self._slices.get(bundle.namespace, {})
        first, last = bundle.low >> _SLICE_BITS, bundle.high >> _SLICE_BITS
        for at in range(first, last + 1):
            names = slices.get(at, {})
            if first < at < last:
                yield from names
            else:
                yield from (name for name in names if name in bundle)


def _slice_of(name: TopicName) -> int:
    return bundle_hash(str(name)) >> _SLICE_BITS
