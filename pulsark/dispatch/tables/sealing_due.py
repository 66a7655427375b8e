"""What is due to be sealed of a topic, and of many topics which first. Pure.

A ledger that is closed is due; one that is open, when it has enough for a file or when its messages
have waited for as long as the policy allows. Topics with little in them share what a round has
left for them, those first that have waited longest: a hundred thousand nearly empty topics cost
as much as a few. Namespaces take turns, however much one of them has.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pulsark.storage.table.files.seal_range import SealRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pulsark.dispatch.policies.policies import SealingPolicy
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
    from pulsark.wire.topic_name import TopicName

CHECK_SECONDS: Final = 2.0
"""Time between two looks at all topics."""

TIDY_SECONDS: Final = 600.0
"""Time between two times that small files are merged and old ones deleted."""

SMALL_BYTES: Final = 1 << 20
"""A table of which less is due waits until the round has time for it."""

DEFERRED_SECONDS_MAX: Final = 900.0
"""Time that sealing waits at most for a broker that clients keep busy."""

DEFERRED_BYTES_MAX: Final = 16 << 30
"""How much of one table is left in the journal for that."""

ATTACH_BYTES: Final = 128 << 20
"""About what is sealed and attached at a time."""

SMALL_TABLES_A_ROUND: Final = 32
"""Tables with little in them that are sealed in one round at most."""

T = TypeVar("T")


@dataclass(slots=True)
class Due(Generic[T]):
    """What is due of one table."""

    base: TopicName
    topics: list[T]
    """Partitions of it."""
    size: int
    """Bytes, about."""
    since: float
    """Since when it waits."""


def due_ranges(
    policy: SealingPolicy,
    partition: int,
    ledgers: Iterable[LedgerInfo],
    through: Mapping[int, int],
    waited_seconds: float,
    *,
    everything: bool = False,
) -> list[SealRange]:
    """The ranges of a topic that are due. ``through``: the last sealed entry of each ledger."""
    found = []
    late = 0 < policy.freshness_seconds <= waited_seconds
    for info in ledgers:
        first = through.get(info.ledger_id, -1) + 1
        if first >= info.entries:
            continue
        size = info.size * (info.entries - first) // info.entries
        if everything or late or not info.open or size >= policy.target_file_bytes:
            found.append(SealRange(partition, info.ledger_id, first, info.entries - 1, size))
    return found


def may_wait(work: Due[T], now: float) -> bool:
    """Whether what is due can wait for the broker to be less busy: clients go first."""
    return work.size < DEFERRED_BYTES_MAX and now - work.since < DEFERRED_SECONDS_MAX


def first_of(due: Mapping[T, Sequence[SealRange]], size: int) -> dict[T, list[SealRange]]:
    """About ``size`` bytes of what is due, at least one range; the rest is for later."""
    found: dict[T, list[SealRange]] = {key: [] for key in due}
    for key, ranges in due.items():
        for wanted in ranges:
            if size <= 0:
                return found
            part = wanted.within(size)
            found[key].append(part)
            size -= part.size
    return found


def in_order(due: Iterable[Due[T]]) -> list[Due[T]]:
    """What a round does, in order: what is large, and some of the rest."""
    large: dict[str, list[Due[T]]] = {}
    small: dict[str, list[Due[T]]] = {}
    for work in due:
        kind = large if work.size >= SMALL_BYTES else small
        kind.setdefault(work.base.namespace_name, []).append(work)
    longest = [
        nsmallest(SMALL_TABLES_A_ROUND, works, key=lambda work: work.since)
        for works in small.values()
    ]
    longest.sort(key=lambda works: works[0].since)
    some = list(islice(_in_turn(longest), SMALL_TABLES_A_ROUND))
    turns = {namespace: list(works) for namespace, works in large.items()}
    for work in some:
        turns.setdefault(work.base.namespace_name, []).append(work)
    return list(_in_turn(turns.values()))


def _in_turn(lists: Iterable[Sequence[Due[T]]]) -> Iterator[Due[T]]:
    """Take the first of each list, then the second of each."""
    for works in zip_longest(*lists):
        yield from (work for work in works if work is not None)
