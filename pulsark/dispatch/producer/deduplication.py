"""Deduplication: what a producer sends again is confirmed again, but stored once.

Theory of operation
-------------------
Of each producer name a topic keeps the highest sequence id that is stored (`sequences`). An entry
counts as stored when its append is confirmed, not before: one whose append failed is taken
again. Whether a failed append left something behind is known once the ledger is recovered;
until then the names concerned are in doubt, and no producer may publish under them.

What is known is kept in the cursor `pulsar.dedup`: its properties are a snapshot, its mark-delete
position says up to which entry that holds. These are two records of the cursor log, and with many
names two entries, the names first: a crash in between leaves a snapshot that knows more than its
position says, and what is read again is taken in again. The other way round names would be
forgotten. When the topic is loaded, the entries after that position are read and taken in. The
cursor moves with each snapshot, so it holds back trimming no longer than that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.model.producer import send_receipts
from pulsark.dispatch.producer.sequences import (
    NONE,
    SEQUENCE_ID_MAX,
    ProducerSequences,
    SequenceTable,
    Verdict,
)
from pulsark.errors import (
    ClientError,
    ProtocolError,
    PulsarkError,
    ServerError,
    StorageError,
    trace_of,
)
from pulsark.limits import (
    DEDUPLICATION_BATCH_BYTES_MAX,
    DEDUPLICATION_BATCH_MESSAGES_MAX,
    DEDUPLICATION_WAIT_SECONDS,
    IDS_PER_STEP_MAX,
)
from pulsark.storage.cursor.owners import DEDUPLICATION_CURSOR, CursorOwner
from pulsark.tasks import unattended
from pulsark.wire.entry import entry_metadata, is_erased, parse_entry
from pulsark.wire.position import Position
from pulsark.wire.sequence_ids import completes_message, sequence_ids
from pulsark.wire.text_fields import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.entry import Entry
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.runtime import Clock
    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

BULK_PREFIX = "pulsark.bulk."
"""Producers that write whole ledgers: each is there once because of how it is attached."""
REPLICATOR_PREFIX = "pulsar.repl."
"""Producers that publish for others, whose names and ids are in the messages."""

_SPECIAL_PREFIXES = (BULK_PREFIX, REPLICATOR_PREFIX)
_LAST = 2**62
_REPLAY_ENTRIES = 1000
_REPLAY_BYTES = 4 << 20
_RETRY_SECONDS = 1.0


class _Ids(NamedTuple):
    """What an entry is judged by: a name, the id in its SEND, and the highest that is told."""

    name: str
    first: int
    highest: int

    def batch_at(self, entry: Entry) -> Position | None:
        """Where the entry is stored, if it is a batch that does not tell its last id."""
        return entry.position if entry.messages > 1 and self.highest == self.first else None


def _is_named(entry: bytes, producer_name: str) -> bool:
    """Return whether an entry is stored under a producer's name: by that it is counted later."""
    return as_text(entry_metadata(entry).producer_name) == producer_name


def _is_small(entry: Entry) -> bool:
    return entry.messages <= DEDUPLICATION_BATCH_MESSAGES_MAX


class NewestEntries(Protocol):
    """What a topic has stored."""

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``position`` on."""


class DeduplicatedTopic(Protocol):
    """The topic, as its deduplication sees it."""

    name: TopicName
    settings: Settings
    policies: TopicPolicies
    clock: Clock
    ledger: ManagedLedger
    producers: dict[str, Producer]

    @property
    def entries(self) -> NewestEntries:
        """What it has stored."""


class Deduplication:
    """Deduplication of one topic, while it is on. Created by ``open``; runs on the event loop."""

    def __init__(self, topic: DeduplicatedTopic, cursor: Cursor) -> None:
        settings = topic.settings
        self.cursor = cursor
        self.table = SequenceTable(
            settings.brokerDeduplicationMaxNumberOfProducers,
            settings.brokerDeduplicationProducerInactivityTimeoutMinutes * 60,
            topic.clock.monotonic,
        )
        self._topic = topic
        self._clock = topic.clock
        self._under_way: dict[Entry, tuple[ProducerSequences, _Ids] | None] = {}
        """Appended entries, and what is stored of their producers once they are confirmed."""
        self._curious: dict[ProducerSequences, None] = {}
        """Names of which the last batch is to be looked into, and the task that does so."""
        self._looking: asyncio.Task[None] | None = None
        self._duplicates: dict[Entry, list[Entry]] = {}
        """Duplicates by the entry under way after which their receipts are due."""
        self._doubtful: set[ProducerSequences] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Future[None] | None = None
        """Set while an operation waits for a name to be decided."""
        self._unsaved = 0
        """Entries since the last snapshot."""
        self._save_after = settings.brokerDeduplicationEntriesInterval
        self._saving = False
        self._saved_at = self._clock.monotonic()
        self._ended = False

    @classmethod
    async def open(cls, topic: DeduplicatedTopic, cursor: Cursor) -> Deduplication:
        """Find out what is stored. Raises ``StorageError`` if that cannot be known now."""
        opened = cls(topic, cursor)
        try:
            opened.table.restore(cursor.properties)
        except ValueError as error:
            raise StorageError(
                f"{topic.name}: the snapshot in {DEDUPLICATION_CURSOR}: {error}"
            ) from error
        await opened._replay(cursor.mark_delete)
        for name in topic.producers:
            opened.table.joined(name)
        return opened

    async def _replay(self, after: Position) -> None:
        ledger = self._topic.ledger
        while (position := ledger.next_position(after)) <= ledger.last_confirmed:
            if await ledger.is_attached(position.ledger_id):
                after = Position(position.ledger_id, _LAST)  # see BULK_PREFIX
                continue
            entries = await self._topic.entries.read(position, _REPLAY_ENTRIES, _REPLAY_BYTES)
            if not entries:
                return
            self._take_in(entries)
            after = entries[-1].position

    def _take_in(self, entries: Iterable[Entry]) -> None:
        """Count entries that are stored."""
        for entry in entries:
            self._unsaved += 1
            found = self._ids_in_metadata(entry)
            if found is not None and completes_message(entry.data):
                self._store(found, entry)

    def _store(self, ids: _Ids, entry: Entry) -> None:
        if ids.highest <= SEQUENCE_ID_MAX:
            self.table.of(ids.name).store(ids.highest, ids.batch_at(entry))

    # -- publishing ------------------------------------------------------------------------------

    def admit(self, entry: Entry) -> bool:
        """Whether an entry is to be stored. If not, its producer hears from here."""
        producer = entry.producer
        assert producer is not None
        ids = self._ids_of(entry, producer)
        noted = None
        if ids is not None:
            special = producer.name.startswith(_SPECIAL_PREFIXES)
            if not special and not _is_named(entry.data, producer.name):
                self._refuse_name(entry, producer)
                return False
            if ids.highest > SEQUENCE_ID_MAX:
                self._refuse_number(entry, producer, ids.highest)
                return False
            known = self.table.of(ids.name)
            if completes_message(entry.data):
                verdict = known.check(ids.first, ids.highest)
                noted = known, ids
            else:
                verdict = known.judge(ids.first)
            if verdict is not Verdict.NEW:
                self._refuse(entry, producer, verdict)
                return False
        self._under_way[entry] = noted
        producer.last_published = entry
        return True

    def _ids_of(self, entry: Entry, producer: Producer) -> _Ids | None:
        """What an entry is judged by; ``None`` if it does not count."""
        if entry.marker:
            return None
        name = producer.name
        if name.startswith(_SPECIAL_PREFIXES):
            return self._ids_in_metadata(entry)
        first = entry.sequence_id
        return _Ids(name, first, max(first, entry.highest_sequence_id or first))

    def _ids_in_metadata(self, entry: Entry) -> _Ids | None:
        try:
            header = parse_entry(entry.data)
        except ProtocolError:
            return None  # no consumer can read it, and no producer sends it again
        erased = is_erased(header.metadata)
        if (header.marker and not erased) or header.producer_name.startswith(BULK_PREFIX):
            return None
        first, highest = header.sequence_id, header.metadata.highest_sequence_id
        return _Ids(header.producer_name, first, max(first, highest))

    def _refuse_name(self, entry: Entry, producer: Producer) -> None:
        entry.producer = None
        producer.connection.send_publish_error(
            producer,
            entry,
            ServerError.NotAllowedError,
            f"The message names another producer than {producer.name}, whose messages it would "
            "count to after a restart: deduplication takes each message from its own producer",
        )

    def _refuse_number(self, entry: Entry, producer: Producer, number: int) -> None:
        entry.producer = None
        producer.connection.send_publish_error(
            producer,
            entry,
            ServerError.NotAllowedError,
            f"Sequence id {number} of {producer.name} is above 2^63-1: number messages from 0 on",
        )

    def _refuse(self, entry: Entry, producer: Producer, verdict: Verdict) -> None:
        if verdict is Verdict.STORED:
            before = producer.last_published
            if before is not None:  # receipts leave in the order of the SENDs
                self._duplicates.setdefault(before, []).append(entry)
            else:
                send_receipts([entry], successive=False)
            return
        entry.producer = None
        producer.connection.send_publish_error(
            producer,
            entry,
            ServerError.PersistenceError,
            f"Message {entry.sequence_id} of {producer.name} is being stored: send it again later",
        )

    def confirmed(self, entries: list[Entry]) -> None:
        """Entries exist: note it, and confirm them to their producers."""
        under_way = self._under_way
        for entry in entries:
            producer = entry.producer
            try:
                noted = under_way.pop(entry)
            except KeyError:  # it was on its way before deduplication was on
                ids = None if producer is None else self._ids_of(entry, producer)
                if ids is not None and completes_message(entry.data):
                    self._store(ids, entry)
                continue
            if noted is not None:
                known, ids = noted
                known.store(ids.highest, ids.batch_at(entry))
            if producer is not None and producer.last_published is entry:
                producer.last_published = None
        if self._duplicates:
            self._send_all_receipts(entries)
        else:
            send_receipts(entries)
        if self._changed is not None:
            self._tell_changed()
        self._unsaved += len(entries)
        if self._unsaved >= self._save_after and self._unsaved >= len(self.table):
            # With many names a snapshot costs as much as reading as many entries would.
            self.save(entries[-1].position)

    def _send_all_receipts(self, entries: list[Entry]) -> None:
        """Send the receipts of entries, and of duplicates that came after them."""
        start = 0
        for index, entry in enumerate(entries, 1):
            duplicates = self._duplicates.pop(entry, None)
            if duplicates is not None:
                send_receipts(entries[start:index])
                start = index
                send_receipts(duplicates, successive=False)
        send_receipts(entries[start:])

    def failed(self, entries: list[Entry]) -> list[Entry]:
        """Appends were not confirmed. Returns all entries that get no receipt now, in order."""
        unanswered: list[Entry] = []
        for entry in entries:
            unanswered.append(entry)
            unanswered += self._duplicates.pop(entry, ())
            noted = self._under_way.pop(entry, None)
            if noted is not None:
                noted[0].doubt()
                self._doubtful.add(noted[0])
            if entry.producer is not None:
                entry.producer.last_published = None
        if self._topic.ledger.is_settled:
            self.recovered(None, 0)
        return unanswered

    def recovered(self, first: Position | None, count: int) -> None:
        """The end of the ledger is known: ``count`` entries from ``first`` on exist after all."""
        doubtful, self._doubtful = self._doubtful, set()
        if first is None or not count:
            self._decide(doubtful)
            return
        task = unattended(
            self._settle(first, count, doubtful),
            f"{self._topic.name}: deduplication of recovered entries",
        )
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, first: Position, count: int, doubtful: set[ProducerSequences]) -> None:
        while count:
            try:
                entries = await self._topic.entries.read(
                    first, min(count, _REPLAY_ENTRIES), _REPLAY_BYTES
                )
            except Exception as error:  # whatever it is: publishers wait for it
                log.warning(
                    "%s: deduplication cannot read recovered entries: %s",
                    self._topic.name,
                    error,
                    exc_info=trace_of(error),
                )
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not entries:
                break  # trimmed
            self._take_in(entries)
            count -= len(entries)
            first = self._topic.ledger.next_position(entries[-1].position)
        self._decide(doubtful)

    def _decide(self, doubtful: set[ProducerSequences]) -> None:
        for known in doubtful:
            known.decide()
        if self._changed is not None:
            self._tell_changed()

    # -- producers -------------------------------------------------------------------------------

    async def joined(self, name: str) -> None:
        """A producer has a name. Returns once all that was sent under it is decided and known.

        Raises ``ClientError`` if that takes long: the client tries again.
        """
        self.table.joined(name)
        known = self.table.of(name)
        loop = asyncio.get_running_loop()
        until = loop.time() + DEDUPLICATION_WAIT_SECONDS
        while not known.decided and not self._ended:
            if self._changed is None:
                self._changed = loop.create_future()
            # A timer may fire a rounding error early, so the clock does not tell whether it did.
            changed, _ = await asyncio.wait([self._changed], timeout=until - loop.time())
            if not changed and not known.decided:
                raise ClientError(
                    ServerError.ServiceNotReady,
                    f"It is not known yet which messages of {name} are stored",
                )
        await self._look_into_batch(known)

    def left(self, name: str) -> None:
        """No producer has the name any more."""
        known = self.table.get(name)
        self.table.left(name)
        if known is not None and known.batch is not None and not self._ended:
            # Now, because later it may have been trimmed.
            self._curious[known] = None
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_into_batches())

    def last_sequence_id(self, name: str) -> int:
        """The last that is known to be stored of a name, -1 if nothing is known."""
        known = self.table.get(name)
        return NONE if known is None else known.last

    async def _look_into_batches(self) -> None:
        while self._curious:
            known = next(iter(self._curious))
            del self._curious[known]
            try:
                await self._look_into_batch(known)
            except Exception:  # a defect; the other names are looked after all the same
                log.exception(
                    "%s: deduplication cannot read a producer's last batch", self._topic.name
                )
            await asyncio.sleep(0)
        self._looking = None

    async def _look_into_batch(self, known: ProducerSequences) -> None:
        """Find the last id of the batch that was stored last, if it tells and is not too large."""
        position = known.batch
        if position is None:
            return
        try:
            entries = await self._topic.entries.read(position, 1, 1)
            last = NONE
            if entries and entries[0].position == position and _is_small(entries[0]):
                ids = sequence_ids(entries[0].data, DEDUPLICATION_BATCH_BYTES_MAX)
                async for number in in_turns(ids, IDS_PER_STEP_MAX):
                    last = max(last, number)
        except ProtocolError:
            last = NONE  # encrypted, damaged or too large
        except PulsarkError as error:
            log.info(
                "%s: deduplication cannot read a batch's sequence ids: %s",
                self._topic.name,
                error,
            )
            return
        known.looked_into(position, last if last <= SEQUENCE_ID_MAX else NONE)

    def _tell_changed(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    # -- snapshots -------------------------------------------------------------------------------

    def save(self, position: Position) -> None:
        """Keep what is known, which is about all entries up to ``position``.

        Not while recovered entries are read: they would be left out.
        """
        if self._saving or self._settling:
            return
        self._saving = True
        self._unsaved = 0
        self.cursor.set_properties(self.table.snapshot(), by=CursorOwner.DEDUPLICATION)
        self.cursor.ack_cumulative(position, done=self._saved)

    def _saved(self, error: BaseException | None) -> None:
        self._saving = False
        self._saved_at = self._clock.monotonic()
        if error is not None:
            log.warning(
                "%s: cannot store the snapshot of deduplication, trying again later: %s",
                self._topic.name,
                error,
            )

    def look_after(self) -> None:
        """What is due from time to time: forget producers that left, and save what has not been."""
        self.table.forget_left()
        age = self._clock.monotonic() - self._saved_at
        if self._unsaved and 0 < self._topic.policies.deduplication_snapshot_seconds <= age:
            self.save(self._topic.ledger.last_confirmed)

    def close(self) -> None:
        """The topic is unloaded, its ledger closed: the next load has nothing to read."""
        if self._unsaved:
            self.save(self._topic.ledger.last_confirmed)
        self._end()

    def switched_off(self) -> None:
        """Nothing is kept any more. Producers that wait for a duplicate's receipt send it again."""
        self._end()
        duplicates, self._duplicates = self._duplicates, {}
        for waiting in duplicates.values():
            for entry in waiting:
                producer, entry.producer = entry.producer, None
                if producer is not None:
                    producer.connection.close_producer(producer)
                    # It is closed, so its client hears nothing of this: it weighs no more.
                    producer.connection.send_publish_error(
                        producer, entry, ServerError.ServiceNotReady, "Send it again"
                    )

    def _end(self) -> None:
        """Stop what is under way."""
        self._ended = True
        for task in self._settling:
            task.cancel()
        if self._looking is not None:
            self._looking.cancel()
        self._tell_changed()
