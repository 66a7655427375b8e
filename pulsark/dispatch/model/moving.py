"""Clients of topics that go to another broker by intent: they are told once it has the topics.

Until then they know of nothing, and what they send is dropped without an answer; they send it again
to the next owner. Receipts for what was published before still reach them.

All of a bundle's clients at once would be a queue at the next owner, and who publishes would wait
in it behind those that do nothing. So clients are told topic by topic: first of topics for which
one of them has sent something, then of the others, some at a time.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.wire.topic_name import TopicName

    Tell = Callable[[ServiceUrls | None], None]


class Moving:
    """What is to be told to the clients of one move."""

    def __init__(self) -> None:
        self._later: dict[TopicName, list[Tell]] = {}
        self._waiting: dict[TopicName, None] = {}
        """Topics of which a client has sent something that nobody answers."""
        self._there: ServiceUrls | None = None
        self._has_ended = False

    def later(self, topic: TopicName, tell: Tell) -> None:
        """Tell a client of a topic when the time has come; at once if it has."""
        if self._has_ended:
            tell(self._there)
        else:
            self._later.setdefault(topic, []).append(tell)

    def hurry(self, topic: TopicName) -> None:
        """A client has sent something for a topic: its clients are told first."""
        if self._has_ended:
            self._tell(topic)
        else:
            self._waiting[topic] = None

    def end(self, urls: ServiceUrls | None) -> None:
        """The time has come. Where to go; ``None``: clients find that out themselves."""
        self._has_ended, self._there = True, urls
        for topic in self._waiting:
            self._tell(topic)
        self._waiting.clear()

    def tell_some(self, topics: int) -> bool:
        """Tell the clients of a number of topics; returns whether any topics are left."""
        for topic in list(islice(self._later, topics)):
            self._tell(topic)
        return bool(self._later)

    def _tell(self, topic: TopicName) -> None:
        for tell in self._later.pop(topic, ()):
            tell(self._there)
