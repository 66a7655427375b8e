"""Reports a stream's progress to the broker: by its subscription, or as a position.

A query claims its subscription for as long as it runs, and renews the claim from a thread, since
a batch may take long. A killed query loses it after ``QUERY_CLAIM_SECONDS``: a starting query
waits that long before it gives up, so that its own past never blocks a restart. A query without a
subscription reports to the broker as well, but does not depend on it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsark.datasource.options.errors import DataSourceError, SubscriptionInUseError
from pulsark.datasource.options.offsets import StreamOffset
from pulsark.limits import QUERY_CLAIM_SECONDS
from pulsark.wire.message_id import MessageId
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pulsark.datasource.admin.client import SparkAdmin

log = logging.getLogger(__name__)

FOLLOWS = "follows"
"""In what a source reports as its newest offset: ``{"adminUrl", "query", "subscription"}``."""

BEHIND = "behind"
"""There, too: ``{"entries", "bytes"}`` that come after the batch that is finished or under way."""

RENEW_SECONDS = QUERY_CLAIM_SECONDS / 6
_WAIT_SECONDS = 1.5 * QUERY_CLAIM_SECONDS
_PAUSE_SECONDS = 0.2
_TOPICS_AT_ONCE = 2000
_NAMED = 3


class Following:
    """One query, with its subscription if it has one. Not for several threads, its own apart.

    ``admin`` is for this alone: acknowledgements use it while the next batch is planned.
    """

    def __init__(
        self, subscription: str | None, admin: SparkAdmin, renewing: Callable[[], SparkAdmin]
    ) -> None:
        """``renewing`` makes the client of the thread that keeps a claim."""
        self._subscription = subscription
        self._admin = admin
        self._claim = Claim(subscription, renewing)
        self._created: set[str] = set()
        self._acknowledged: dict[str, MessageId] = {}
        self._under_way: _Task | None = None
        weakref.finalize(self, self._claim.end)

    @property
    def said(self) -> dict[str, Any]:
        """What the listener has to know, for ``FOLLOWS``."""
        return {
            "adminUrl": self._admin.url,
            "query": self._claim.query,
            "subscription": self._subscription,
        }

    def start(self, begin: StreamOffset) -> None:
        """Claim the subscription of all topics, and create it where it is missing."""
        new = begin.partitions.keys() - self._created
        if not new:
            self._claim.check()
            return
        self.settle()
        self._claim.take(self._admin, _topics(new))
        if self._subscription is not None:
            self._create({name: begin.partitions[name].read for name in new})
        self._created |= new

    def read(self, begin: StreamOffset) -> None:
        """Everything up to there is read: without a subscription the broker is told."""
        if self._subscription is None:
            self._claim.read = begin

    def acknowledge(self, end: StreamOffset) -> None:
        """Move the subscription to the end of a finished batch; ``SubscriptionInUseError``."""
        self.settle()
        self._acknowledge(end)

    def acknowledge_soon(self, end: StreamOffset) -> None:
        """Acknowledge without waiting: the next call raises an error."""
        self.settle()
        if self._subscription is not None:
            self._under_way = _Task(partial(self._acknowledge, end))

    def settle(self) -> None:
        """Wait for what is under way."""
        task, self._under_way = self._under_way, None
        if task is not None:
            task.wait()

    def _acknowledge(self, end: StreamOffset) -> None:
        if self._subscription is None:
            return
        self._claim.check()
        moved = {
            name: place
            for name, offset in end.partitions.items()
            if (place := acknowledged_through(offset.read)) is not None
            and self._acknowledged.get(name) != place
        }
        if not moved:
            return
        self._claim.take(self._admin, _topics(moved.keys() - self._created))
        missing = self._claim.keeping(
            self._admin, lambda query: self._admin.queries.acknowledge(query, moved)
        )
        if missing:
            log.warning(
                "subscription %s of %s is gone: creating it again if its topic exists",
                self._subscription,
                ", ".join(missing[:_NAMED]),
            )
            self._create({name: moved[name] for name in missing})
        self._acknowledged |= moved

    def stop(self, end: StreamOffset | None, patience_s: float) -> None:
        """Acknowledge up to ``end`` if the broker is there, and let others have the subscription.

        What fails is not raised: the query is over, and the next run commits from its checkpoint.
        """
        self._admin.patience_s = patience_s
        task = self._under_way
        if task is not None and not task.ends_within(patience_s):
            log.warning(
                "subscription %s has not acknowledged the last batch yet", self._subscription
            )
            self._claim.end()
            return
        try:
            if end is not None:
                self.acknowledge(end)
        except DataSourceError as error:
            log.warning("%s", error)
        self._claim.release(self._admin)
        self._admin.close()

    def _create(self, read: Mapping[str, MessageId]) -> None:
        first = {
            name: place
            if place.batch_index >= 0
            else MessageId(place.ledger_id, place.entry_id + 1)
            for name, place in read.items()
        }
        self._claim.keeping(
            self._admin, lambda query: self._admin.queries.create_subscriptions(query, first)
        )


class _Task(threading.Thread):
    """Something done beside; begins at once, and is given up where the process ends."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__(name="acknowledgement", daemon=True)
        self._action = action
        self._error: DataSourceError | None = None
        self.start()

    def run(self) -> None:
        """The thread's."""
        try:
            self._action()
        except DataSourceError as error:
            self._error = error

    def ends_within(self, seconds: float) -> bool:
        """Whether it is done, now or so soon."""
        self.join(seconds)
        return not self.is_alive()

    def wait(self) -> None:
        """Until it is done; raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error


def _topics(partitions: Iterable[str]) -> set[str]:
    return {str(TopicName.parse(name).base) for name in partitions}


def acknowledged_through(read: MessageId) -> MessageId | None:
    """The last entry of which all was read, if there is one in its ledger."""
    place = read_through(read)
    return None if place.entry_id < 0 else place


def read_through(read: MessageId) -> MessageId:
    """The last entry of which all was read; -1 if there is none in its ledger."""
    # If the place is within an entry, the rest of it is still to come.
    return read if read.batch_index < 0 else MessageId(read.ledger_id, read.entry_id - 1)


class Claim:
    """What a query has of a subscription, kept alive by a thread."""

    def __init__(self, subscription: str | None, renewing: Callable[[], SparkAdmin]) -> None:
        self._subscription = subscription
        self._renewing = renewing
        self.query = uuid.uuid4().hex
        self.read = StreamOffset({})
        """Up to where a query without a subscription has read."""
        self._client = f"{socket.gethostname()}:{os.getpid()}"
        self._topics: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: str | None = None

    def take(self, admin: SparkAdmin, topics: set[str]) -> None:
        """Claim more topics, waiting for a query that may have died; ``SubscriptionInUseError``."""
        self.check()
        new = topics - self._topics
        if not new:
            return
        try:
            deadline = time.monotonic() + _WAIT_SECONDS
            while (holder := self._put(admin, new)) is not None:
                if time.monotonic() >= deadline:
                    raise self._in_use(holder)
                time.sleep(_PAUSE_SECONDS)
        except DataSourceError as error:
            if self._subscription is not None:
                raise
            log.warning("the query goes on, but the broker cannot list it: %s", error)
        self._topics = self._topics | new
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="claim", daemon=True)
            self._thread.start()

    def keeping(self, admin: SparkAdmin, do: Callable[[str], list[str] | None]) -> list[str] | None:
        """Do something that needs the claim, once more if the broker has started anew."""
        found = do(self.query)
        if found is None:
            holder = self._put(admin, self._topics)
            if holder is not None:
                raise self._in_use(holder)
            found = do(self.query)
        return found

    def check(self) -> None:
        """``SubscriptionInUseError`` if another query has it now."""
        if self._lost is not None:
            raise self._in_use(self._lost)

    def end(self) -> None:
        """Renew it no longer."""
        self._ended.set()

    def release(self, admin: SparkAdmin) -> None:
        """Give everything back."""
        self.end()
        if self._thread is None:
            return
        self._thread.join(RENEW_SECONDS)
        try:
            admin.queries.release(self.query)
        except DataSourceError as error:
            log.warning("%s", error)  # it runs out by itself

    def _renew(self) -> None:
        admin = self._renewing()
        admin.patience_s = RENEW_SECONDS
        told: dict[str, MessageId] = {}
        while not self._ended.wait(RENEW_SECONDS):
            read = {
                name: place
                for name, offset in self.read.partitions.items()
                if told.get(name) != (place := read_through(offset.read))
            }
            try:
                if admin.queries.renew(self.query, read):
                    told |= read
                else:  # the broker has started anew
                    told.clear()
                    self._lost = self._put(admin, self._topics)
            except DataSourceError as error:
                log.debug("claim not renewed: %s", error)
            if self._lost is not None:
                break
        admin.close()

    def _put(self, admin: SparkAdmin, topics: Iterable[str]) -> str | None:
        names = sorted(topics)
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            some = names[start : start + _TOPICS_AT_ONCE]
            holder = admin.queries.claim(self.query, self._client, self._subscription, some)
            if holder is not None:
                return holder
        return None

    def _in_use(self, holder: str) -> SubscriptionInUseError:
        return SubscriptionInUseError(
            f"{holder}. Stop that query, or give this one a subscription of its own: two queries "
            "would acknowledge each other's messages"
        )
