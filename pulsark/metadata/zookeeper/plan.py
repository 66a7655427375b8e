"""One commit as operations of ZooKeeper. Pure.

``Plan.add`` takes a commit and what is known of its nodes. It finds that the commit can be tried,
that it is to be refused, or that more must be read first. A commit is refused only by facts that
are fresh, which means read after the commit was asked for; it is tried by older ones, because
ZooKeeper itself checks all versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from pulsark.errors import MetadataRefusedError
from pulsark.metadata.based_values import encode
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.store import ABSENT, ANY_VERSION, bad_version, wrong_kind
from pulsark.metadata.zookeeper.facts import EPHEMERAL_VERSIONS, Fact, NoNode, Parent, Part, Valued
from pulsark.metadata.zookeeper.layout import TREE, part_node, part_of
from pulsark.metadata.zookeeper.nodes import (
    ANY,
    VERSION_MAX,
    CheckNode,
    CreateNode,
    DeleteNode,
    Operation,
    Result,
    SetNode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence, Set


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete a parent that has neither a value nor children, if it still has none."""

    path: str


Wanted: TypeAlias = Change | Prune


class NeedsFreshError(Exception):
    """The facts refuse the commit, but may be old."""


@dataclass(slots=True)
class Step:
    """One change within a multi."""

    wanted: Wanted
    node: str
    version: int | None = None
    """The new version of the value; ``None`` if the result of an operation tells it."""
    place: int = -1
    """That operation."""
    after: Fact | None = None
    """What the node is afterwards; ``None`` if as before."""
    appeared: bool = False
    """Whether a value appears or vanishes."""


@dataclass(slots=True)
class Plan:
    """The operations of one multi, for several commits."""

    session_id: int
    parts: dict[int, Part]
    known: Set[str]
    """Nodes that exist, as far as this process knows."""
    operations: list[Operation] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    """Parents that the multi creates."""
    kept: set[str] = field(default_factory=set)
    """Those of them that it does not delete again."""
    used: set[int] = field(default_factory=set)
    """Parts whose facts are used."""
    floors: dict[int, int] = field(default_factory=dict)
    """New floors of parts in which something is deleted."""
    _fresh: bool = False

    @property
    def all_parts(self) -> list[int]:
        """The parts that the first operations check or change, in their order."""
        return sorted(self.used | self.floors.keys())

    def add(self, wanted: Sequence[Wanted], nodes: Sequence[str], *, fresh: bool) -> list[Step]:
        """Append a commit, or raise ``NeedsFreshError`` or ``MetadataRefusedError`` unchanged."""
        before = (
            len(self.operations), len(self.made), set(self.kept), set(self.used), dict(self.floors)
        )  # fmt: skip
        steps: list[Step] = []
        self._fresh = fresh
        try:
            for each, node in zip(wanted, nodes, strict=True):
                steps.append(self._add(each, node))
        except (NeedsFreshError, MetadataRefusedError):
            operations, made, self.kept, self.used, self.floors = before
            del self.operations[operations:]
            del self.made[made:]
            raise
        return steps

    def finish(self, told: CreateNode | None) -> tuple[list[Operation], int]:
        """All operations, and how many precede those of the commits."""
        first: list[Operation] = []
        for part in self.all_parts:
            known = self.parts[part]
            if part in self.floors:
                data = b"%d" % max(self.floors[part], known.floor)
                first.append(SetNode(part_node(part), data, known.version))
            else:
                first.append(CheckNode(part_node(part), known.version))
        last: list[Operation] = [
            DeleteNode(node) for node in reversed(self.made) if node not in self.kept
        ]
        if told is not None:
            last.append(told)
        return [*first, *self.operations, *last], len(first)

    def _add(self, wanted: Wanted, node: str) -> Step:
        part = part_of(node)
        fact = self.parts[part].facts.get(node, NoNode())
        if node in self.made:  # by now it is there
            fact = Parent(0, 1)
        self.used.add(part)
        if isinstance(wanted, Prune):
            return self._prune(wanted, node, part, fact)
        version = fact.base + fact.version if isinstance(fact, Valued) else ABSENT
        self._compare(wanted, version, fact)
        if isinstance(wanted, Put):
            if isinstance(fact, Valued):
                return self._change(wanted, node, fact)
            return self._create(wanted, node, part, fact)
        if isinstance(wanted, Delete):
            assert isinstance(fact, Valued)
            return self._delete(wanted, node, part, fact)
        return self._check(wanted, node, fact)

    def _compare(self, wanted: Change, version: int, fact: Fact) -> None:
        expected = wanted.expected_version
        if self._fresh:
            fits = expected in (ANY_VERSION, version)
        elif isinstance(fact, Valued):  # its version may have risen, as far as a node's can
            fits = expected == ANY_VERSION or 0 <= expected - fact.base <= VERSION_MAX
        else:
            fits = expected in (ANY_VERSION, ABSENT)
        if isinstance(wanted, Delete) and not isinstance(fact, Valued):
            fits = False
        if not fits:
            self._refuse(bad_version(wanted.path, version, expected))

    def _refuse(self, error: MetadataRefusedError) -> NoReturn:
        if not self._fresh:
            raise NeedsFreshError
        raise error

    def _change(self, put: Put, node: str, fact: Valued) -> Step:
        if fact.owner != (self.session_id if put.ephemeral else 0):
            self._refuse(wrong_kind(put.path, ephemeral=bool(fact.owner)))
        at = ANY if put.expected_version == ANY_VERSION else put.expected_version - fact.base
        self.operations.append(SetNode(node, encode(put.path, put.value, fact.base), at))
        return Step(put, node, place=len(self.operations) - 1, after=fact)

    def _create(self, put: Put, node: str, part: int, fact: NoNode | Parent) -> Step:
        floor = self.parts[part].floor
        if isinstance(fact, Parent) and not put.ephemeral:
            # The versions of the node go on; those of the value begin at the floor.
            after = Valued(floor - fact.version - 1, fact.version + 1, 0, fact.children)
            data = encode(put.path, put.value, after.base)
            self._keep(node)
            self.operations.append(SetNode(node, data, fact.version))
            return Step(put, node, floor, after=after, appeared=True)
        if isinstance(fact, Parent):
            if fact.children:
                refused = f"{put.path} has children: it cannot be ephemeral"
                self._refuse(MetadataRefusedError(refused))
            self.operations.append(DeleteNode(node, fact.version))
        if put.ephemeral:
            self.floors[part] = max(self.floors.get(part, 0), floor) + EPHEMERAL_VERSIONS
        self._make_parents(node, kept=True)
        self.operations.append(CreateNode(node, encode(put.path, put.value, floor), put.ephemeral))
        after = Valued(floor, 0, self.session_id if put.ephemeral else 0, 0)
        return Step(put, node, floor, after=after, appeared=True)

    def _delete(self, delete: Delete, node: str, part: int, fact: Valued) -> Step:
        expected = delete.expected_version
        at = fact.version if expected == ANY_VERSION else expected - fact.base
        above = 0 if fact.owner else fact.base + at + 1  # of an ephemeral one the floor is above
        self.floors[part] = max(self.floors.get(part, 0), above)
        after: Fact = NoNode()
        if fact.children and not self._fresh:
            raise NeedsFreshError  # they may be gone: then the node goes, too
        if fact.children:
            self.operations.append(SetNode(node, b"", at))
            after = Parent(at + 1, fact.children)
        else:
            self.operations.append(DeleteNode(node, at))
        return Step(delete, node, ABSENT, after=after, appeared=True)

    def _check(self, check: Check, node: str, fact: Fact) -> Step:
        if isinstance(fact, Valued):
            self._check_node(CheckNode(node, check.expected_version - fact.base))
        elif isinstance(fact, Parent):
            self._check_node(CheckNode(node, fact.version))
        else:
            # What can be created is not there; ZooKeeper has no other check of that.
            self._make_parents(node, kept=False)
            self.operations += [CreateNode(node), DeleteNode(node)]
        return Step(check, node, check.expected_version)

    def _check_node(self, check: CheckNode) -> None:
        if check not in self.operations:  # commits of one bundle check the same
            self.operations.append(check)

    def _prune(self, prune: Prune, node: str, part: int, fact: Fact) -> Step:
        if not isinstance(fact, Parent) or fact.children:
            if not self._fresh:
                raise NeedsFreshError
            return Step(prune, node, 0)
        self.floors.setdefault(part, 0)
        self.operations.append(DeleteNode(node, fact.version))
        return Step(prune, node, 1, after=NoNode())

    def _make_parents(self, node: str, *, kept: bool) -> None:
        parent = node.rpartition("/")[0]
        if kept:
            self._keep(parent)
        if parent == TREE or parent in self.known or parent in self.made:
            return
        self._make_parents(parent, kept=kept)
        self.made.append(parent)
        if kept:
            self.kept.add(parent)
        self.operations.append(CreateNode(parent))

    def _keep(self, node: str) -> None:
        """What the multi makes on the way to a node stays."""
        while node in self.made:
            self.kept.add(node)
            node = node.rpartition("/")[0]


def versions_of(steps: Sequence[Step], results: Sequence[Result], start: int) -> list[int]:
    """The new versions of a commit. ``start``: where the operations of commits begin."""
    versions = []
    for step in steps:
        version = step.version
        if version is None:
            found = results[start + step.place]
            assert isinstance(found, int)
            assert isinstance(step.after, Valued)
            version = step.after.base + found
        versions.append(version)
    return versions
