"""A commit as a transaction of etcd, by what is known of its paths. Pure.

etcd counts the versions of a key from 1 again when it was deleted and created anew. So a value has
a *base* in front, and its version is the base plus etcd's count. The base never changes until the
value is deleted, so what was read of it once stays true for the same creation.

A new value's base must be above all versions that its path had. The tree has parts, and each has a
key that every deletion in the part changes, and every write of an ephemeral value, which may be
deleted without anybody's doing. The revision of that key's last change is the base, and the
transaction compares that it still is. Revisions count all changes of etcd: a version is never above
the revision that made it, so it is below the revision of any later deletion. Where nothing was
deleted the base is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from pulsark.errors import BadVersionError, CorruptMetadataError, MetadataRefusedError
from pulsark.metadata.based_values import decode, encode
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.layout import part_of
from pulsark.metadata.store import ABSENT, ANY_VERSION, check_version, wrong_kind
from pulsark.metadata.told import APPEARANCES, is_within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pulsark.metadata.etcd.layout import Layout
    from pulsark.metadata.etcd.messages import Json, KeyValue

FACTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Present:
    """A value as it was seen."""

    created: int
    changed: int
    count: int
    """etcd's own version."""
    base: int
    lease: int

    @property
    def version(self) -> int:
        """The version of the store's contract."""
        return self.base + self.count - 1


Fact: TypeAlias = Present | None
"""``None``: there is no value."""


def read_value(path: str, found: KeyValue) -> tuple[bytes, Present]:
    """What a path's key holds, and what is known by that. ``CorruptMetadataError``."""
    stored = decode(path, found.value)
    if stored is None:
        raise CorruptMetadataError(f"the value of {path} in etcd was not written by Pulsark")
    seen = Present(found.created, found.changed, found.version, stored.base, found.lease)
    return stored.value, seen


class Facts:
    """What is known of paths, which may be old, and of parts. Bounded."""

    def __init__(self) -> None:
        self._paths: dict[str, Fact] = {}
        self.parts: dict[int, int] = {}
        """For each part the revision of the last deletion that is known."""

    def knows(self, path: str) -> bool:
        """Whether anything is known of a path."""
        return path in self._paths

    def of(self, path: str) -> Fact:
        """What is known; nothing known is no value."""
        return self._paths.get(path)

    def learn(self, path: str, fact: Fact) -> None:
        """Remember a fact."""
        self._paths.pop(path, None)
        if len(self._paths) >= FACTS_MAX:
            del self._paths[next(iter(self._paths))]
        self._paths[path] = fact


@dataclass(slots=True)
class Plan:
    """A transaction, and what is true if it succeeds."""

    compares: list[Json] = field(default_factory=list)
    operations: list[Json] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    after: dict[str, Fact] = field(default_factory=dict)
    """``created`` and ``changed`` of 0 stand for the revision that the transaction makes."""
    parts: set[int] = field(default_factory=set)
    """Those whose key is changed."""
    is_watched: bool = False
    """Whether the watches of all processes tell of it."""

    def succeeded(self, revision: int, facts: Facts) -> None:
        """Remember what the transaction has made."""
        for path, fact in self.after.items():
            if fact is not None:
                fact = replace(fact, created=fact.created or revision, changed=revision)
            facts.learn(path, fact)
        for part in self.parts:
            facts.parts[part] = revision


def needs_fact(change: Change) -> bool:
    """Whether a change can be planned only with what is stored; others expect that nothing is."""
    return change.expected_version != ABSENT and not (
        isinstance(change, Check) and change.expected_version == ANY_VERSION
    )


def problem(change: Change, fact: Fact, lease: int) -> MetadataRefusedError | None:
    """Why a change is refused by what is stored."""
    version = ABSENT if fact is None else fact.version
    try:
        check_version(change.path, version, change.expected_version)
    except BadVersionError as error:
        return error
    if fact is None:
        if isinstance(change, Delete):
            return BadVersionError(change.path, "does not exist")
    elif isinstance(change, Put) and fact.lease != (lease if change.ephemeral else 0):
        return wrong_kind(change.path, ephemeral=fact.lease != 0)
    return None


def plan(
    changes: Sequence[Change],
    facts: Mapping[str, Fact],
    parts: Mapping[int, int],
    layout: Layout,
    lease: int,
) -> Plan:
    """The transaction for changes of which none has a problem, by facts and revisions of parts."""
    made = Plan()
    bases: set[int] = set()
    appeared: list[str] = []
    for change in changes:
        fact = facts.get(change.path)
        key, part = layout.key(change.path), part_of(change.path)
        if isinstance(change, Check):
            made.versions.append(change.expected_version)
            if change.expected_version == ANY_VERSION:
                continue
        made.compares.append(messages.is_at(key, 0 if fact is None else fact.changed))
        if isinstance(change, Check):
            continue
        if isinstance(change, Delete):
            made.operations.append(messages.delete(key))
            made.parts.add(part)
            after: Fact = None
        else:
            if fact is None:
                bases.add(part)
            after = _after(change, fact, parts.get(part, 0), lease)
            value = encode(change.path, change.value, after.base)
            made.operations.append(messages.put(key, value, after.lease))
            if change.ephemeral:
                made.parts.add(part)
        if (fact is None or after is None) and is_within(change.path, APPEARANCES):
            appeared.append(change.path)
        made.is_watched |= key.startswith(layout.told) or bool(appeared)
        made.after[change.path] = after
        made.versions.append(ABSENT if after is None else after.version)
    for part in sorted(bases):
        made.compares.append(messages.is_at(layout.deletions(part), parts.get(part, 0)))
    made.operations += [messages.put(layout.deletions(part), b"") for part in sorted(made.parts)]
    if appeared:
        made.operations.append(messages.put(layout.appeared, "\0".join(appeared).encode()))
    return made


def _after(change: Put, fact: Fact, base: int, lease: int) -> Present:
    if fact is None:
        return Present(0, 0, 1, base, lease if change.ephemeral else 0)
    return replace(fact, count=fact.count + 1)


def parts_of(changes: Sequence[Change]) -> Mapping[int, None]:
    """The parts of all paths, once each, in order."""
    return dict.fromkeys(sorted({part_of(change.path) for change in changes}))
