"""What holds of bundles and their owners at each commit, and of the topics that brokers have.

A broker alone changes what is stored of its bundles' topics; no two bundles that have owners
overlap; and a bundle goes when all of its topics are closed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from pulsark.dispatch.broker import Broker
from pulsark.dispatch.topic.topic import Topic
from pulsark.dispatch.topics.bundles import Covered
from pulsark.dispatch.topics.registry import Seen
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.guarded import guard_of
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import (
    BUNDLE_EPOCHS,
    BUNDLE_OWNERS,
    CURSORS,
    DELAYED_BUCKETS,
    MANAGED_LEDGERS,
    bundle_counted_at,
    bundle_owner_at,
    topic_at,
)
from pulsark.wire.topic_name import TopicName
from tests.sim.broker_faults import ShakyStore

STALE_SECONDS = 5.0
"""So long a broker may have what is not its own any more."""

_OF_TOPICS = (MANAGED_LEDGERS, DELAYED_BUCKETS)


class OwnedTree(MemoryTree):
    """Checks each commit of a broker, and tells ``on_owners`` of those that change owners."""

    def __init__(self) -> None:
        super().__init__()
        self.on_owners: Callable[[], None] = lambda: None
        self._claimers: dict[str, str] = {}
        """By bundle the process that claimed it last; "" if it was split, or nobody did."""

    def commit(self, changes: Sequence[Change], session: MemoryMetadataStore | None) -> list[int]:
        owners = [c for c in changes if _is_owner(c)]
        mine = [c for c in owners if (n := self._nodes.get(c.path)) and n.session is session]
        versions = super().commit(changes, session)
        for change in changes:
            if isinstance(change, Put) and change.path.startswith(f"{BUNDLE_EPOCHS}/"):
                claim = json.loads(change.value)
                self._claimers[bundle_counted_at(change.path)] = claim.get("broker", "")
        if isinstance(session, ShakyStore):
            if owners:
                self._check_overlap()
                self.on_owners()
                _check_closed(session.broker, mine)
            else:
                self._check_writer(session.broker, changes)
        return versions

    def owned(self) -> list[str]:
        """The bundles that have an owner."""
        return [bundle_owner_at(p) for p in self._nodes if p.startswith(f"{BUNDLE_OWNERS}/")]

    def _check_overlap(self) -> None:
        ranges = sorted((c.namespace, c.low, c.high) for c in map(Covered, self.owned()))
        for (one, _, high), (other, low, _) in pairwise(ranges):
            assert one != other or high <= low, f"two bundles with owners have {low:#x}: {ranges}"

    def _check_writer(self, broker: Broker, changes: Iterable[Change]) -> None:
        for change in changes:
            claimer = None if isinstance(change, Check) else self._claimer_at(change.path)
            assert claimer in (None, broker.ownership.instance), (
                f"{broker.urls.broker_id} writes {change.path}, which is another broker's"
            )

    def _claimer_at(self, path: str) -> str | None:
        """Who alone may write there; ``None``: that is not known."""
        if path.startswith(f"{CURSORS}/"):
            return self._claimers.get(path.removeprefix(f"{CURSORS}/"))
        for tree in _OF_TOPICS:
            if path.startswith(f"{tree}/"):
                name = TopicName.parse(topic_at(tree, path))
                found = [b for b, c in self._claimers.items() if c and name in Covered(b)]
                return self._claimers[found[0]] if len(found) == 1 else None
        return None


def _is_owner(change: Change) -> bool:
    return change.path.startswith(f"{BUNDLE_OWNERS}/") and not isinstance(change, Check)


def _check_closed(broker: Broker, changes: Iterable[Change]) -> None:
    """What a broker gives up it does not use any more."""
    for change in changes:
        if isinstance(change, Delete):
            bundle = bundle_owner_at(change.path)
            for name in broker.topics.names_in(Covered(bundle)):
                topic = broker.topics.get_loaded(name)
                assert topic is None or topic.closed, f"{bundle} goes, and {name} is not closed"


class Leftovers:
    """What brokers have that is another's. ``look`` now and then."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[object, float] = {}
        self._wrong: list[str] = []

    def watch_loads(self, broker: Broker) -> None:
        """A topic is loaded only if its broker has its bundle when that is done."""
        load = broker.topics._loaded_anew

        async def watched(name: TopicName, seen: Seen, *, served: bool) -> Topic:
            topic = await load(name, seen, served=served)
            if not broker.ownership.holds(_guard_of(topic)):
                self._wrong.append(f"{broker.urls.broker_id} loads {name}, and has no bundle of it")
            return topic

        broker.topics._loaded_anew = watched  # type: ignore[method-assign]

    def look(self, tree: OwnedTree, stores: Iterable[ShakyStore]) -> None:
        """Raise if there is any, or was for too long. Those that are cut off cannot know."""
        assert not self._wrong, self._wrong[0]
        found: dict[object, str] = {}
        for store in stores:
            if store.cut:
                continue
            broker, ended = store.broker, store.session.has_ended
            held = broker.ownership.guard_of
            for topic in broker.topics.loaded():
                guard = _guard_of(topic)
                if ended or held(bundle_counted_at(guard.path)) != guard:
                    found[topic] = f"{broker.urls.broker_id} has {topic.name} without its bundle"
            for path, node in tree._nodes.items():
                if node.session is store and path.startswith(f"{BUNDLE_OWNERS}/"):
                    bundle = bundle_owner_at(path)
                    if held(bundle) is None and json.loads(node.value)["disabled"]:
                        found[broker, bundle] = f"{bundle} is being unloaded, and nobody does it"
        now = self._now()
        self._since = {key: self._since.get(key, now) for key in found}
        for key, since in self._since.items():
            assert now - since < STALE_SECONDS, found[key]


def _guard_of(topic: Topic) -> Check:
    guard = guard_of(topic.ledger._manager._metadata)
    assert guard is not None
    return guard
