"""Frames that differ from the previous one in a number only: receipts, and heads of messages.

A broker writes more of these two than of all other commands together, in runs whose ids rise by
one. Protobuf would build each anew; here they are assembled from bytes that stay the same for
128 ids, because a varint is the lowest seven bits followed by the varint of the rest.
"""

from __future__ import annotations

import struct

_sizes = struct.Struct(">II")
_BLOCK_BITS = 7
_LOW_BITS = 0x7F
_LAST = [bytes((i,)) for i in range(128)]
_MORE = [bytes((i | 0x80,)) for i in range(128)]

# BaseCommand: field 1 is the type, the number of a command's own field is its type.
_RECEIPT_TYPE = b"\x08\x07\x3a"
_MESSAGE_TYPE = b"\x08\x09\x4a"


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > _LOW_BITS:
        encoded.append(number & _LOW_BITS | 0x80)
        number >>= _BLOCK_BITS
    encoded.append(number)
    return bytes(encoded)


def send_receipts(
    producer_id: int, ledger_id: int, first_entry_id: int, sequence_ids: list[int]
) -> bytes:
    """The whole frames that confirm SENDs of one producer, whose entries follow each other.

    The same bytes as ``frames.send_receipt`` gives for each, without highest sequence ids.
    """
    frames: list[bytes] = []
    sequence_block = entry_block = -1
    before = between = after = b""
    sequence_low = entry_low = _LAST
    for entry_id, sequence_id in enumerate(sequence_ids, first_entry_id):
        if entry_id >> 7 != entry_block or sequence_id >> 7 != sequence_block:
            entry_block, sequence_block = entry_id >> 7, sequence_id >> 7
            sequence_low, sequence_rest = _parts(sequence_block)
            entry_low, after = _parts(entry_block)
            ledger = b"\x08" + _varint(ledger_id) + b"\x10"
            id_size = len(ledger) + 1 + len(after)
            between = sequence_rest + b"\x1a" + _varint(id_size) + ledger
            start = b"\x08" + _varint(producer_id) + b"\x10"
            body_size = len(start) + 1 + len(between) + 1 + len(after)
            command = _RECEIPT_TYPE + _varint(body_size) + start
            size = len(command) - len(start) + body_size
            before = _sizes.pack(size + 4, size) + command
        frames += (
            before,
            sequence_low[sequence_id & 127],
            between,
            entry_low[entry_id & 127],
            after,
        )
    return b"".join(frames)


def _parts(block: int) -> tuple[list[bytes], bytes]:
    """For the numbers of a block of 128: the first bytes of their varints, and all the rest."""
    return (_MORE, _varint(block)) if block else (_LAST, b"")


class MessageHeads:
    """What comes before an entry in the frames of MESSAGEs to one consumer.

    The same bytes as ``frames.message_head`` gives without redeliveries and ack set.
    """

    __slots__ = (
        "_after",
        "_before",
        "_block",
        "_consumer_id",
        "_epoch",
        "_ledger_id",
        "_low",
        "_partition",
        "_size",
    )

    def __init__(self, consumer_id: int, partition: int) -> None:
        self._consumer_id = consumer_id
        self._partition = partition
        self._ledger_id = self._block = -1
        self._epoch: int | None = None
        self._before = self._after = b""
        self._low = _LAST
        self._size = 0

    def head(self, ledger_id: int, entry_id: int, epoch: int | None, entry_size: int) -> bytes:
        """The head for an entry of ``entry_size`` bytes."""
        if entry_id >> 7 != self._block or ledger_id != self._ledger_id or epoch != self._epoch:
            self._begin_block(ledger_id, entry_id >> 7, epoch)
        size = self._size
        frame_size = _sizes.pack(size + 4 + entry_size, size)
        return frame_size + self._before + self._low[entry_id & 127] + self._after

    def _begin_block(self, ledger_id: int, block: int, epoch: int | None) -> None:
        self._ledger_id, self._block, self._epoch = ledger_id, block, epoch
        self._low, rest = _parts(block)
        if self._partition >= 0:
            rest += b"\x18" + _varint(self._partition)
        self._after = rest if epoch is None else rest + b"\x28" + _varint(epoch)
        ledger = b"\x08" + _varint(ledger_id) + b"\x10"
        consumer = b"\x08" + _varint(self._consumer_id)
        message_id = b"\x12" + _varint(len(ledger) + 1 + len(rest)) + ledger
        body_size = len(consumer) + len(message_id) + 1 + len(self._after)
        self._before = _MESSAGE_TYPE + _varint(body_size) + consumer + message_id
        self._size = len(self._before) + 1 + len(self._after)
