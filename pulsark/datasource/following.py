"""The durable subscription that follows a stream: claimed by one query, moved behind it.

A query claims its subscription for as long as it runs, and renews the claim from a thread, since
a batch may take long. Who is killed loses it after ``CLAIM_SECONDS``: a query that starts waits
for that before it gives up, so that a restart is never refused because of its own past.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable

from pulsark.datasource.admin_client import AdminClient
from pulsark.datasource.errors import DataSourceError, SubscriptionInUseError, TopicNotFoundError
from pulsark.datasource.offsets import Place, StreamOffset
from pulsark.limits import QUERY_CLAIM_SECONDS
from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

FOLLOWS = "follows"
"""In what a source reports as its newest offset: ``{"subscription", "adminUrl"}``."""

RENEW_SECONDS = QUERY_CLAIM_SECONDS / 6
_WAIT_SECONDS = 1.5 * QUERY_CLAIM_SECONDS
_PAUSE_SECONDS = 0.2
_TOPICS_AT_ONCE = 2000


class Following:
    """The subscription of one query. Not for several threads, its own one apart."""

    def __init__(self, subscription: str, admin: AdminClient, url: str) -> None:
        self._subscription = subscription
        self._admin = admin
        self._claim = _Claim(subscription, url)
        self._created: set[str] = set()
        self._acknowledged: dict[str, Place] = {}

    def start(self, begin: StreamOffset) -> None:
        """Claim the subscription of all topics, and create it where it is missing."""
        new = begin.partitions.keys() - self._created
        self._claim.take(self._admin, {str(TopicName.parse(name).base) for name in new})
        for name, offset in begin.partitions.items():
            if name in new:
                self._create(name, offset.read)
                self._created.add(name)

    def acknowledge(self, end: StreamOffset) -> None:
        """Move the subscription to the end of a finished batch; ``SubscriptionInUseError``."""
        self._claim.check()
        for name, offset in end.partitions.items():
            place = acknowledged_through(offset.read)
            if place is None or self._acknowledged.get(name) == place:
                continue
            if not self._admin.acknowledge(name, self._subscription, place):
                log.warning(
                    "subscription %s of %s is gone: created again", self._subscription, name
                )
                try:
                    self._create(name, place)
                except TopicNotFoundError as error:
                    log.warning("%s", error)
            self._acknowledged[name] = place

    def stop(self) -> None:
        """Let others have the subscription."""
        self._claim.release(self._admin)

    def _create(self, name: str, read: Place) -> None:
        first = read if read.batch_index >= 0 else Place(read.ledger_id, read.entry_id + 1)
        self._admin.create_subscription(name, self._subscription, first)


def acknowledged_through(read: Place) -> Place | None:
    """The last entry of which all was read, if there is one in its ledger."""
    # If the place is within an entry, the rest of it is still to come.
    place = read if read.batch_index < 0 else Place(read.ledger_id, read.entry_id - 1)
    return None if place.entry_id < 0 else place


class _Claim:
    """What a query has of a subscription, kept alive by a thread."""

    def __init__(self, subscription: str, url: str) -> None:
        self._subscription = subscription
        self._url = url
        self._query = uuid.uuid4().hex
        self._client = f"{socket.gethostname()}:{os.getpid()}"
        self._topics: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: str | None = None

    def take(self, admin: AdminClient, topics: set[str]) -> None:
        """Claim more topics, waiting for a query that may have died; ``SubscriptionInUseError``."""
        self.check()
        new = topics - self._topics
        if not new:
            return
        deadline = time.monotonic() + _WAIT_SECONDS
        while (holder := self._put(admin, new)) is not None:
            if time.monotonic() >= deadline:
                raise self._in_use(holder)
            time.sleep(_PAUSE_SECONDS)
        self._topics = self._topics | new
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="claim", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """``SubscriptionInUseError`` if another query has it now."""
        if self._lost is not None:
            raise self._in_use(self._lost)

    def release(self, admin: AdminClient) -> None:
        """Give everything back."""
        self._ended.set()
        if self._thread is None:
            return
        self._thread.join(RENEW_SECONDS)
        try:
            admin.release(self._query)
        except DataSourceError as error:
            log.warning("%s", error)  # it runs out by itself

    def _renew(self) -> None:
        admin = AdminClient(self._url, RENEW_SECONDS)
        while not self._ended.wait(RENEW_SECONDS):
            try:
                if not admin.renew(self._query):  # the broker has started anew
                    self._lost = self._put(admin, self._topics)
            except DataSourceError as error:
                log.debug("claim not renewed: %s", error)
            if self._lost is not None:
                break
        admin.close()

    def _put(self, admin: AdminClient, topics: Iterable[str]) -> str | None:
        names = sorted(topics)
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            some = names[start : start + _TOPICS_AT_ONCE]
            holder = admin.claim(self._query, self._client, self._subscription, some)
            if holder is not None:
                return holder
        return None

    def _in_use(self, holder: str) -> SubscriptionInUseError:
        return SubscriptionInUseError(
            f"{holder}. Stop that query, or give this one a subscription of its own: two queries "
            "would acknowledge each other's messages"
        )
