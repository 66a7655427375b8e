"""Compaction of a topic: of the messages with one key only the latest stays. Pure decisions.

Passes over the same entries, in order: the first finds the latest message of each key, the last
says what remains of an entry. If the keys do not fit into memory, a pass takes only a part of
them, by a hash of the key, and another pass takes the rest. A message without a payload is a
tombstone: its key goes. What cannot be looked into (encrypted batches, damaged payloads) stays as
it is, and so do members of a batch in their places: those that went are marked, so that indexes
remain.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from pyroaring import BitMap

from pulsark.errors import ProtocolError, PulsarkError
from pulsark.limits import (
    COMPACTION_BATCH_BYTES_MAX,
    COMPACTION_BATCH_MESSAGES_MAX,
    COMPACTION_KEYS_MAX,
)
from pulsark.storage.position_set import PositionSet
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import entry_metadata, key_bytes, parse_entry
from pulsark.wire.hashes import murmur3_32
from pulsark.wire.text_fields import as_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.wire.position import Position

_ALL_BITS = 0x7FFF_FFFF

_Identity = tuple[int, int, int] | bytes
"""``(ledger id, entry id, batch index)``; of a message in chunks, its uuid as ``_short`` has it."""

_SHORT_BYTES = 32


class CompactionTooLargeError(PulsarkError):
    """The topic has more keys than fit into the memory set aside for them."""


class _Latest:
    """The latest messages of the keys that are done with, two bytes or so for each."""

    def __init__(self) -> None:
        self._alone = PositionSet()
        self._in_batches: dict[tuple[int, int], BitMap] = {}
        self._in_chunks: set[bytes] = set()

    def add(self, identity: _Identity) -> None:
        if isinstance(identity, bytes):
            self._in_chunks.add(identity)
            return
        ledger_id, entry_id, index = identity
        if index < 0:
            self._alone.add((ledger_id, entry_id))
        else:
            self._in_batches.setdefault((ledger_id, entry_id), BitMap()).add(index)

    def __contains__(self, identity: _Identity) -> bool:
        if isinstance(identity, bytes):
            return identity in self._in_chunks
        ledger_id, entry_id, index = identity
        if index < 0:
            return (ledger_id, entry_id) in self._alone
        return index in self._in_batches.get((ledger_id, entry_id), ())


class Compaction:
    """One run. ``retain_null_key``: messages without a key stay; else they go.

    ``any_number``: of keys. Otherwise more than fit into memory are an error.
    """

    def __init__(self, *, retain_null_key: bool, any_number: bool = False) -> None:
        self._retain_null_key = retain_null_key
        self._any_number = any_number
        self._latest: dict[bytes, _Identity] = {}
        self._done = _Latest()
        # This pass takes the keys whose hash has these last bits; others wait for theirs.
        self._mask, self._bits = 0, 0
        self._waiting: list[tuple[int, int]] = []
        self.removed = 0
        """Messages that the last pass found to be gone."""

    def note(self, position: Position, entry: bytes) -> None:
        """A pass that looks for the latest. Raises ``CompactionTooLargeError``."""
        try:
            for key, identity, gone in _messages(position, entry):
                if key is None or (self._mask and murmur3_32(key) & self._mask != self._bits):
                    continue
                if gone:
                    self._latest.pop(key, None)
                else:
                    self._latest[key] = identity
        except ProtocolError:
            return
        while len(self._latest) > COMPACTION_KEYS_MAX and self._mask < _ALL_BITS:
            if not self._any_number:
                raise CompactionTooLargeError(
                    f"The topic has more than {COMPACTION_KEYS_MAX} keys: too many for the broker "
                    "to compact by itself; run the job compact_topic"
                )
            self._take_half()

    def _take_half(self) -> None:
        """Leave half of the keys to another pass."""
        bit = self._mask + 1
        self._mask |= bit
        self._waiting.append((self._mask, self._bits | bit))
        self._latest = {
            key: identity
            for key, identity in self._latest.items()
            if murmur3_32(key) & self._mask == self._bits
        }

    def another_pass(self) -> bool:
        """A pass of ``note`` is over. Whether there has to be another one before ``remains``."""
        for identity in self._latest.values():
            self._done.add(identity)
        self._latest = {}
        if not self._waiting:
            return False
        self._mask, self._bits = self._waiting.pop()
        return True

    def remains(self, position: Position, entry: bytes) -> bytes | None:
        """The last pass: the entry as it remains; ``None`` if nothing of it does."""
        header = parse_entry(entry)
        if header.marker:
            return None
        try:
            kept = [self._stays(*message) for message in _messages(position, entry)]
        except ProtocolError:
            return entry
        self.removed += kept.count(False)
        if not any(kept):
            return None
        return entry if all(kept) else _with_holes(entry, kept)

    def _stays(self, key: bytes | None, identity: _Identity, gone: bool) -> bool:
        if key is None:
            return self._retain_null_key
        return not gone and identity in self._done


def batch_members(entry: bytes) -> Iterator[tuple[pb.SingleMessageMetadata, bytes]]:
    """The messages of a batch. ``ProtocolError`` if it stays whole, because of its size or damage.

    The compacted ledger is read by the same rule: what is larger has no message marked as gone.
    """
    if parse_entry(entry).messages > COMPACTION_BATCH_MESSAGES_MAX:
        raise ProtocolError(f"A batch has more than {COMPACTION_BATCH_MESSAGES_MAX} messages")
    for single, payload in read_messages(entry, COMPACTION_BATCH_BYTES_MAX):
        if single is None:
            raise ProtocolError("An entry is no batch")
        yield single, payload


def _messages(position: Position, entry: bytes) -> Iterator[tuple[bytes | None, _Identity, bool]]:
    """Key, identity, and whether it deletes its key, of each message that is still there.

    Raises ``ProtocolError`` if the entry cannot be looked into.
    """
    header = parse_entry(entry)
    metadata = header.metadata
    if header.marker:
        return
    if metadata.num_chunks_from_msg > 1:
        yield _key(metadata), _short(as_bytes(metadata.uuid)), False
    elif not header.batched:
        empty = metadata.null_value or header.payload_offset == len(entry)
        if not empty and metadata.compression and not metadata.encryption_keys:
            empty = metadata.uncompressed_size == 0
        yield _key(metadata), (*position, -1), empty
    else:
        for index, (single, payload) in enumerate(batch_members(entry)):
            if single.compacted_out:
                yield None, (*position, index), True
            else:
                empty = single.null_value or not payload
                yield _key(single), (*position, index), empty


def _key(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    key = key_bytes(metadata)
    return None if key is None else _short(key)


def _short(text: bytes) -> bytes:
    """Return a stand-in for a text, of at most 33 bytes, so that only their number counts.

    Two texts with one stand-in would be a collision of BLAKE2b.
    """
    if len(text) <= _SHORT_BYTES:
        return text
    return b"#" + blake2b(text, digest_size=_SHORT_BYTES).digest()


def _with_holes(entry: bytes, kept: list[bool]) -> bytes:
    metadata = entry_metadata(entry)
    members = [
        (single, payload) if stays else (pb.SingleMessageMetadata(compacted_out=True), b"")
        for stays, (single, payload) in zip(kept, batch_members(entry), strict=True)
    ]
    return build_batch(metadata, members, metadata.compression)
