"""Compaction of a topic: of the messages with one key only the latest stays. Pure decisions.

Two passes over the same entries, in order: the first finds the latest message of each key, the
second says what remains of an entry. A message without a payload is a tombstone: its key goes.
What cannot be looked into (encrypted batches, damaged payloads) stays as it is, and so do
members of a batch in their places: those that went are marked, so that indexes remain.
"""

from __future__ import annotations

from collections.abc import Iterator

from pulsark.errors import ProtocolError, PulsarkError
from pulsark.limits import COMPACTION_KEYS_MAX, DECOMPRESSED_BYTES_MAX
from pulsark.storage.position import Position
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import entry_metadata, key_bytes, parse_entry

_Identity = tuple[int, int, int] | str
"""``(ledger id, entry id, batch index)``; of a message in chunks, its uuid."""


class CompactionTooLargeError(PulsarkError):
    """The topic has more keys than fit into the memory set aside for them."""


class Compaction:
    """One run. ``retain_null_key``: messages without a key stay; else they go."""

    def __init__(self, *, retain_null_key: bool) -> None:
        self._retain_null_key = retain_null_key
        self._latest: dict[bytes, _Identity] = {}
        self.removed = 0
        """Messages that the second pass found to be gone."""

    def note(self, position: Position, entry: bytes) -> None:
        """First pass. Raises ``CompactionTooLargeError``."""
        try:
            for key, identity, gone in _messages(position, entry):
                if key is None:
                    continue
                if gone:
                    self._latest.pop(key, None)
                else:
                    self._latest[key] = identity
        except ProtocolError:
            return
        if len(self._latest) > COMPACTION_KEYS_MAX:
            raise CompactionTooLargeError(
                f"The topic has more than {COMPACTION_KEYS_MAX} keys: too many for a broker"
            )

    def remains(self, position: Position, entry: bytes) -> bytes | None:
        """Second pass: the entry as it remains; ``None`` if nothing of it does."""
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
        return not gone and self._latest.get(key) == identity


def _messages(position: Position, entry: bytes) -> Iterator[tuple[bytes | None, _Identity, bool]]:
    """Key, identity, and whether it deletes its key, of each message that is still there.

    Raises ``ProtocolError`` if the entry cannot be looked into.
    """
    header = parse_entry(entry)
    metadata = header.metadata
    if header.marker:
        return
    if metadata.num_chunks_from_msg > 1:
        yield key_bytes(metadata), metadata.uuid, False
    elif not header.batched:
        empty = metadata.null_value or header.payload_offset == len(entry)
        if not empty and metadata.compression and not metadata.encryption_keys:
            empty = metadata.uncompressed_size == 0
        yield key_bytes(metadata), (*position, -1), empty
    else:
        members = read_messages(entry, DECOMPRESSED_BYTES_MAX)
        for index, (single, payload) in enumerate(members):
            assert single is not None
            if single.compacted_out:
                yield None, (*position, index), True
            else:
                empty = single.null_value or not payload
                yield key_bytes(single), (*position, index), empty


def _with_holes(entry: bytes, kept: list[bool]) -> bytes:
    metadata = entry_metadata(entry)
    members = [
        (single, payload) if stays else (pb.SingleMessageMetadata(compacted_out=True), b"")
        for stays, (single, payload) in zip(
            kept, read_messages(entry, DECOMPRESSED_BYTES_MAX), strict=True
        )
    ]
    return build_batch(
        metadata, [(s, p) for s, p in members if s is not None], metadata.compression
    )
