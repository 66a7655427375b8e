"""What scripts call messages and places: ``m1`` instead of bytes, ``0:3`` instead of ledger 17."""

from __future__ import annotations

from typing import NamedTuple

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.ack_set import full_mask, mask_of_words, words_of_mask
from pulsark.wire.batch import read_messages
from tests.scripts.script import ScriptError
from tests.support.broker_clients import EARLIEST_ID, LATEST_ID
from tests.support.wire_frames import Received

NO_ID = 2**64 - 1
_LIMIT = 1 << 20

Id = tuple[int, int]


class Place(NamedTuple):
    """Where a message is. ``size`` is 0 outside a batch."""

    id: Id
    index: int = -1
    size: int = 0

    def fill(self, message_id: pb.MessageIdData, ack_set: int = 0) -> None:
        """Make it an id of the protocol. ``ack_set``: the messages of the batch that are left."""
        message_id.ledgerId, message_id.entryId = self.id
        if ack_set:
            message_id.ack_set.extend(words_of_mask(ack_set))
            message_id.batch_size = self.size


class Messages:
    """All messages of a script by their names, and its ledgers in the order in which they came."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._names: dict[Id, list[str]] = {}
        self._ledgers: list[int] = []
        self.published_ms: dict[str, int] = {}

    def stored(self, names: list[str], message_id: pb.MessageIdData, *, batch: bool) -> None:
        """A receipt came."""
        id_ = message_id.ledgerId, message_id.entryId
        if message_id.ledgerId == NO_ID:
            return
        self._names[id_] = names
        for index, name in enumerate(names):
            self._places[name] = Place(id_, index, len(names)) if batch else Place(id_)

    def id_text(self, message_id: pb.MessageIdData) -> str:
        """``ledger:entry``, with the index in a batch if there is one."""
        if message_id.ledgerId == NO_ID:
            return "none"
        if message_id.ledgerId not in self._ledgers:
            self._ledgers.append(message_id.ledgerId)
        entry = -1 if message_id.entryId == NO_ID else message_id.entryId
        index = f":{message_id.batch_index}" if message_id.batch_index >= 0 else ""
        return f"{self._ledgers.index(message_id.ledgerId)}:{entry}{index}"

    def place(self, word: str) -> Place:
        """Of a message's name, an id as it is shown, ``earliest`` or ``latest``."""
        if word in ("earliest", "latest"):
            return Place(EARLIEST_ID if word == "earliest" else LATEST_ID)
        if word in self._places:
            return self._places[word]
        ledger, _, entry = word.partition(":")
        try:
            return Place((self._ledgers[int(ledger)], int(entry) % 2**64))
        except (ValueError, IndexError):
            raise ScriptError(f"No message has this name or place: {word}") from None

    def entries(self, words: tuple[str, ...]) -> list[tuple[Place, int]]:
        """Entries to acknowledge: messages of one batch go together, with what they leave."""
        left: dict[Id, tuple[Place, int]] = {}
        for word in words:
            place = self.place(word)
            _, mask = left.get(place.id, (place, full_mask(place.size)))
            left[place.id] = place, mask & ~(1 << place.index) if place.size else 0
        return list(left.values())

    def up_to(self, word: str) -> tuple[Place, int]:
        """An entry to acknowledge with all before it, and the messages of its batch behind it."""
        place = self.place(word)
        return place, full_mask(place.size) & ~full_mask(place.index + 1)

    def from_on(self, word: str) -> tuple[Place, int]:
        """An entry to begin with, and the messages of its batch from this one on."""
        place = self.place(word)
        return place, full_mask(place.size) & ~full_mask(max(place.index, 0))

    def delivery_text(self, got: Received) -> str:
        """The names in an entry, ``-`` for those that were acknowledged, its place and the rest."""
        command = got.message
        names = [payload.decode() for _, payload in read_messages(got.entry, _LIMIT)]
        if command.ack_set:
            left = mask_of_words(command.ack_set)
            names = [name if left >> i & 1 else "-" for i, name in enumerate(names)]
        singles = [single for single, _ in read_messages(got.entry, _LIMIT)]
        names = [
            "-" if single is not None and single.compacted_out else name
            for single, name in zip(singles, names, strict=True)
        ]
        batch = got.metadata.HasField("num_messages_in_batch")
        text = f"[{' '.join(names)}]" if batch else names[0]
        if not text:
            text = self._names[(command.message_id.ledgerId, command.message_id.entryId)][0]
        notes = [self.id_text(command.message_id)]
        if command.redelivery_count:
            notes.append(f"redelivery {command.redelivery_count}")
        if command.HasField("consumer_epoch"):
            notes.append(f"epoch {command.consumer_epoch}")
        if command.message_id.partition >= 0:
            notes.append(f"partition {command.message_id.partition}")
        return f"{text} ({', '.join(notes)})"
