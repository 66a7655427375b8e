"""What a store knows of nodes, and how a write finds out that it is still true. Pure.

A node's version says nothing after the node was deleted and created again. So the tree has
*parts*, and each has a node that every deletion in the part changes. A write of a path checks that
this node is at the version that it had before the path was read: then the path's node is the same.

The part's node holds the *floor*, which is above all versions of the part's deleted values. It is
the base of new values. The server itself deletes ephemeral nodes, so for these the floor is raised
beforehand, when they are created, above all versions that they can ever have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

EPHEMERAL_VERSIONS: Final = 1 << 32
"""More than a node can have."""

_FACTS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class NoNode:
    """There is no node."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A node without a value."""

    version: int
    children: int


@dataclass(frozen=True, slots=True)
class Valued:
    """A node with a value."""

    base: int
    version: int
    """The node's version when it was seen; only the base cannot change unnoticed."""
    owner: int
    children: int


Fact: TypeAlias = NoNode | Parent | Valued


@dataclass(slots=True)
class Part:
    """A part of the tree as it was read."""

    version: int
    floor: int
    facts: dict[str, Fact] = field(default_factory=dict)
    """By node; read after the part was. One that is not here may be missing, or not be known."""

    def learn(self, node: str, fact: Fact) -> None:
        """Remember a fact, and forget the older half if there are too many: a commit that is
        looked at needs those that were just read.

        Of a node that is not there nothing is kept: there are as many of these as clients ask for.
        """
        self.facts.pop(node, None)  # the newest are last
        if isinstance(fact, NoNode):
            return
        if len(self.facts) >= _FACTS_MAX:
            self.facts = dict(islice(self.facts.items(), _FACTS_MAX // 2, None))
        self.facts[node] = fact
