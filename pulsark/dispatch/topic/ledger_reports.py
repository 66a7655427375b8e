"""What a managed ledger tells its topic. Only from ``entries_confirmed`` on does an entry exist."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.dispatch.model.producer import Producer, send_receipts
from pulsark.errors import ClientError, ServerError
from pulsark.limits import SUBSCRIPTIONS_AT_ONCE_MAX
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.topic.cache import TopicCache
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo

log = logging.getLogger(__name__)


class LedgerReports:
    """The listener of one topic's ledger."""

    __slots__ = ("_cache", "_topic")

    def __init__(self, topic: Topic, cache: TopicCache) -> None:
        self._topic = topic
        self._cache = cache

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[Entry]
    ) -> None:
        """Entries became durable: they exist from now on."""
        topic = self._topic
        messages = size = chunks = 0
        for entry_id, entry in enumerate(contexts, first_entry_id):
            entry.ledger_id = ledger_id
            entry.entry_id = entry_id
            messages += entry.messages
            size += len(entry.data)
            chunks += entry.is_chunk
        if topic.deduplication is None:
            send_receipts(contexts)
        else:
            topic.deduplication.confirmed(contexts)
        topic.entries_in += len(contexts)
        topic.messages_in += messages
        topic.bytes_in += size
        topic.chunks_in += chunks
        topic.arrivals.stored(ledger_id, first_entry_id + len(contexts) - 1)
        self._cache.append(ledger_id, first_entry_id, contexts, size)
        if len(topic.subscriptions) <= SUBSCRIPTIONS_AT_ONCE_MAX:
            for subscription in topic.subscriptions.values():
                subscription.dispatcher.published(ledger_id, first_entry_id, contexts)
        else:
            for subscription in topic.subscriptions.values():
                subscription.dispatcher.schedule_pump()

    def append_failed(self, contexts: list[Entry], error: Exception) -> None:
        """Entries were not confirmed; whether they are stored is unknown.

        Their producers are closed, so that clients connect anew and send everything that
        has no receipt again, in order: a later entry must never overtake a failed one.
        """
        topic = self._topic
        log.warning("%s: %d publishes failed: %s", topic.name, len(contexts), error)
        if topic.deduplication is not None:
            contexts = topic.deduplication.failed(contexts)
        code = error.code if isinstance(error, ClientError) else ServerError.PersistenceError
        closing: dict[int, Producer] = {}
        for entry in contexts:
            producer = entry.producer
            if producer is None:
                continue
            entry.producer = None
            closing[id(producer)] = producer
            producer.connection.send_publish_error(
                producer, entry, code, f"The entry was not stored: {error}"
            )
        for producer in closing.values():
            producer.connection.close_producer(producer)

    def entries_recovered(self, ledger_id: int, first_entry_id: int, count: int) -> None:
        """Entries whose appends were reported as failed exist after all."""
        topic = self._topic
        if topic.deduplication is not None:
            topic.deduplication.recovered(Position(ledger_id, first_entry_id), count)
        if not count:
            return
        self._cache.clear()  # they are missing in its window
        for subscription in topic.subscriptions.values():
            subscription.dispatcher.schedule_pump()

    def ledgers_attached(self, infos: Sequence[LedgerInfo]) -> None:
        """Whole ledgers are at the end now; consumers read them from the table."""
        topic = self._topic
        topic.touch()
        topic.entries_in += sum(info.entries for info in infos)
        topic.bytes_in += sum(info.size for info in infos)
        if infos:
            topic.arrivals.stored(infos[-1].ledger_id, infos[-1].entries - 1)
        self._cache.clear()  # its window ends before them
        for subscription in topic.subscriptions.values():
            subscription.dispatcher.schedule_pump()

    def ledger_closed(self) -> None:
        """A ledger is complete: perhaps it is of no more use."""
        self._topic.retention.trim_soon()
