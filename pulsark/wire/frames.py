"""Cuts a connection's byte stream into frames, and builds frames.

All integers are unsigned and big-endian::

    +-----------+-------------+---------------+----------------------------------+
    | totalSize | commandSize | BaseCommand   | entry, in SEND and MESSAGE only  |
    | 4 bytes   | 4 bytes     | commandSize   | the rest of totalSize            |
    +-----------+-------------+---------------+----------------------------------+

``totalSize`` counts what follows it. The entry is the unit that is stored (see ``entry``); a
MESSAGE may carry one more block, magic ``0x0e02``, in front of it.

A peer's sizes are checked against the limits before anything is allocated, and an unfinished frame
never takes more memory than its bytes that have arrived.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from pulsark.errors import ProtocolError
from pulsark.limits import COMMAND_TEXTS_MAX, FIELDS_COUNTED_BYTES, FIELDS_OF_LARGE_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.field_counts import has_more_fields, number_in
from pulsark.wire.text_fields import has_broken_text, text_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECEIVE_BYTES = 512 * 1024
"""Most that one read of a socket takes, large frames apart."""

LARGE_FRAME_BYTES = 16 * 1024
"""From this size on a copy less of a frame is worth the calls that it takes."""

LARGE_REST_BYTES = 64 * 1024
"""If at least this many bytes of a frame are missing, it is received in place."""

LARGE_COMMAND_BYTES = 64 * 1024
"""From this size on, a command without its entry takes milliseconds to parse."""

NO_REQUEST = 2**64 - 1
"""Where the number of a request is needed and there is no request: Pulsar's -1."""

_sizes = struct.Struct(">II")
_block_head = struct.Struct(">HI")
_BROKER_METADATA_MAGIC = 0x0E02
_SIZE_BYTES = 4
_HEAD_BYTES = 8
_UNSIGNED = 2**64 - 1
_SEND = pb.BaseCommand.SEND
_MESSAGE = pb.BaseCommand.MESSAGE

# One for all connections: every connection copies out what it was given before the next one
# reads, because a transport calls get_buffer, reads, and calls buffer_updated in one go.
_received = memoryview(bytearray(RECEIVE_BYTES))
_windows = [_received[: RECEIVE_BYTES >> halvings] for halvings in range(6)]

_from_bytes = pb.BaseCommand.FromString
_field_of_type = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}
_text_plan_of_type = {
    field.number: text_plan(field.message_type)
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}


class FrameDecoder:
    """Turns the bytes of one connection into commands and entries.

    ``max_frame_size`` (bytes, the size field included) can be changed at any time and counts
    from the next frame on. A list in a command has at most ``texts_max`` texts: only who reads a
    broker's answers may need more. After a ``ProtocolError`` the decoder must not be used any more.
    """

    __slots__ = (
        "_chunks",
        "_halvings",
        "_partial",
        "_room",
        "_texts_max",
        "_wanted",
        "has_large_command",
        "max_frame_size",
    )

    def __init__(self, max_frame_size: int, texts_max: int = COMMAND_TEXTS_MAX) -> None:
        self.max_frame_size = max_frame_size
        self.has_large_command = False
        """Whether the last read completed a frame that takes long to parse."""
        self._texts_max = texts_max
        self._partial = bytearray()  # an unfinished frame from its first byte on
        self._wanted = 0  # length of _partial with which the work can go on
        # The rest of a large frame is received where it stays: in chunks after _partial, each
        # as long as all before it, so that a peer is never given more than twice what it sent.
        self._chunks: list[bytearray] = []
        self._room: memoryview | None = None  # what is free in the last chunk
        self._halvings = 0  # of RECEIVE_BYTES, for what one read may take

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the transport puts what it reads next, for ``asyncio.BufferedProtocol``.

        Mostly a buffer that all decoders of the process share: only for one event loop. With a
        ``sizehint`` it is no larger than that, but for the rest of a large frame.
        """
        missing = self._wanted - len(self._partial)
        if missing < LARGE_REST_BYTES:
            window = _windows[self._halvings]
            return window if sizehint < 0 else window[:sizehint]
        if not self._room:
            chunks = self._chunks
            present = len(self._partial) + sum(map(len, chunks))
            size = min(self._wanted - present, max(present, LARGE_REST_BYTES))
            chunks.append(bytearray(size))
            self._room = memoryview(chunks[-1])
        return self._room

    @property
    def large_frame_bytes(self) -> int:
        """Return the size of the frame whose rest is received in place; 0 without one.

        Valid once what was read before is used up.
        """
        missing = self._wanted - len(self._partial)
        return self._wanted if missing >= LARGE_REST_BYTES else 0

    @property
    def is_in_large_frame(self) -> bool:
        """Whether the next read goes into a large frame, and nowhere else."""
        return self._room is not None

    def fills(self, nbytes: int) -> bool:
        """Whether a read took all that it could, large frames apart."""
        return self._room is None and nbytes == len(_windows[self._halvings])

    def read_less(self) -> None:
        """What the last read brought was too much at a time."""
        self._halvings = min(self._halvings + 1, len(_windows) - 1)

    def read_least(self) -> None:
        """It was far too much."""
        self._halvings = len(_windows) - 1

    def read_more(self) -> None:
        """It could have been more."""
        self._halvings = max(self._halvings - 1, 0)

    def buffer_updated(self, nbytes: int) -> Iterator[tuple[pb.BaseCommand, bytes | None]]:
        """Commands in the ``nbytes`` just read, each with its entry or ``None``.

        The iterator must be used up before this decoder reads again. It raises
        ``ProtocolError`` at the first frame that is wrong, after all frames before it.
        """
        if self._room is None:
            self.has_large_command = False
            received = _received[:nbytes]
            if nbytes >= LARGE_FRAME_BYTES and self._begins_large(received):
                return self._decode_large(received)
            return self._decode(received)
        self._room = self._room[nbytes:]
        if self._room or len(self._partial) + sum(map(len, self._chunks)) < self._wanted:
            return iter(())
        _, command_size = _sizes.unpack_from(self._partial)
        self.has_large_command = command_size >= LARGE_COMMAND_BYTES
        return self._large_frame()

    def receive(self, data: bytes) -> list[tuple[pb.BaseCommand, bytes | None]]:
        """Decode bytes that were read elsewhere, in any thread."""
        return list(self._decode(memoryview(data)))

    def _begins_large(self, received: memoryview) -> bool:
        """Whether the frame that goes on or begins here is a large one."""
        if self._partial:
            return self._wanted >= LARGE_FRAME_BYTES
        return int.from_bytes(received[:_SIZE_BYTES], "big") >= LARGE_FRAME_BYTES

    def _decode_large(self, received: memoryview) -> Iterator[tuple[pb.BaseCommand, bytes | None]]:
        """As ``_decode``, but of the large frames in front each entry is copied once.

        They are cut out now: who takes them may pause, and the buffer is everyone's. What is
        odd about a frame is left to ``_decode``.
        """
        partial, whole, position = self._partial, list[tuple[bytes, bytes]](), 0
        if partial:
            missing = self._wanted - len(partial)
            if missing > len(received):
                partial += received
                return iter(())
            command_end = _HEAD_BYTES + int.from_bytes(partial[_SIZE_BYTES:_HEAD_BYTES], "big")
            if command_end > len(partial):
                return self._decode(received)
            self._partial, self._wanted, position = bytearray(), 0, missing
            entry = b"".join((memoryview(partial)[command_end:], received[:missing]))
            whole.append((bytes(partial[_HEAD_BYTES:command_end]), entry))
        end = len(received)
        while end - position >= _HEAD_BYTES:
            total_size, command_size = _sizes.unpack_from(received, position)
            stop = position + _SIZE_BYTES + total_size
            body = position + _HEAD_BYTES
            command_end = body + command_size
            if (
                not LARGE_FRAME_BYTES <= stop - position <= self.max_frame_size
                or command_end > stop
            ):
                break
            if stop > end:
                self._partial += received[position:]
                self._wanted = stop - position
                return self._parsed(whole)
            whole.append((bytes(received[body:command_end]), bytes(received[command_end:stop])))
            position = stop
        return chain(self._parsed(whole), self._decode(bytes(received[position:])))

    def _parsed(
        self, whole: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[tuple[pb.BaseCommand, bytes | None]]:
        for body, entry in whole:
            yield _parse(body, self._texts_max, has_entry=bool(entry)), entry or None

    def _large_frame(self) -> Iterator[tuple[pb.BaseCommand, bytes | None]]:
        """The frame that has just become complete; its entry is copied once.

        A generator, so that what is wrong with it is raised where commands are carried out.
        """
        first, chunks = memoryview(self._partial), self._chunks
        self._partial, self._chunks, self._room, self._wanted = bytearray(), [], None, 0
        _, command_size = _sizes.unpack_from(first)
        command_end = _HEAD_BYTES + command_size
        if command_end > len(first):
            first = memoryview(b"".join((first, *chunks)))
            chunks = []
        entry = b"".join((first[command_end:], *chunks))
        body = bytes(first[_HEAD_BYTES:command_end])
        yield _parse(body, self._texts_max, has_entry=bool(entry)), entry or None

    def _decode(
        self, received: memoryview | bytes
    ) -> Iterator[tuple[pb.BaseCommand, bytes | None]]:
        """Copy the bytes now: the caller may take the first command in a later turn."""
        partial = self._partial
        if partial:
            partial += received
            if len(partial) < self._wanted:
                return iter(())
            data = bytes(partial)
            partial.clear()
            self._wanted = 0
        else:
            data = bytes(received)
        return self._commands(data)

    def _commands(self, data: bytes) -> Iterator[tuple[pb.BaseCommand, bytes | None]]:
        unpack_sizes = _sizes.unpack_from
        parse, from_bytes = _parse, _from_bytes
        position = 0
        end = len(data)
        while end - position >= _HEAD_BYTES:
            total_size, command_size = unpack_sizes(data, position)
            stop = position + _SIZE_BYTES + total_size
            if stop - position > self.max_frame_size:
                raise ProtocolError(f"A frame of {total_size} bytes is over the limit")
            body = position + _HEAD_BYTES
            command_end = body + command_size
            if command_end > stop:
                raise ProtocolError(f"A command of {command_size} bytes in {total_size} bytes")
            if stop > end:
                break
            position = stop
            if command_end == stop:
                yield parse(data[body:stop], self._texts_max, has_entry=False), None
                continue
            # What is published passes here: a call less for each.
            if command_size > FIELDS_COUNTED_BYTES:
                yield (
                    parse(data[body:command_end], self._texts_max, has_entry=True),
                    data[command_end:stop],
                )
                continue
            try:
                command = from_bytes(data[body:command_end])
            except DecodeError:
                raise ProtocolError("A command that cannot be parsed") from None
            if command.type != _SEND:
                command = parse(data[body:command_end], self._texts_max, has_entry=True)
            yield command, data[command_end:stop]
        if position < end:
            self._keep(data, position)

    def _keep(self, data: bytes, position: int) -> None:
        """Hold back the start of a frame whose rest has not arrived."""
        rest = data[position:]
        self._wanted = _SIZE_BYTES
        if len(rest) >= _SIZE_BYTES:
            self._wanted = _HEAD_BYTES
            total_size = int.from_bytes(rest[:_SIZE_BYTES], "big")
            if not _SIZE_BYTES <= total_size <= self.max_frame_size - _SIZE_BYTES:
                raise ProtocolError(f"A frame of {total_size} bytes is outside the limits")
            if len(rest) >= _HEAD_BYTES:
                self._wanted = _SIZE_BYTES + total_size
        self._partial += rest


def _parse(body: bytes, texts_max: int, *, has_entry: bool) -> pb.BaseCommand:
    """A complete command that an entry follows or does not.

    A command that is refused for its size becomes the ERROR that answers it, or that names no
    request where the client gave no number.
    """
    if len(body) > FIELDS_COUNTED_BYTES and has_more_fields(
        body, pb.BaseCommand.DESCRIPTOR, FIELDS_OF_LARGE_MAX
    ):
        return _refusal_of_large(body)
    try:
        command = _from_bytes(body)
    except DecodeError:
        raise ProtocolError("A command that cannot be parsed") from None
    kind = command.type
    # A SEND that lacks a number, or all of them, reads as 0: only its own producer is affected,
    # so the most frequent command is spared the check for required fields.
    if kind == _SEND:
        if not has_entry:
            raise ProtocolError("A SEND without its parts")
        return command
    field = _field_of_type.get(kind)
    if field is None or not command.HasField(field) or not command.IsInitialized():
        raise ProtocolError(f"A command of type {kind} that is unknown or incomplete")
    if has_entry != (kind == _MESSAGE):
        raise ProtocolError(f"A command of type {kind} with too many or too few bytes")
    plan = _text_plan_of_type[kind]
    request = getattr(command, field)
    try:
        is_broken = plan and has_broken_text(request, plan, texts_max)
    except ProtocolError as error:
        return _refusal(getattr(request, "request_id", NO_REQUEST), str(error))
    if is_broken:
        raise ProtocolError(f"A command of type {kind} with text that is not UTF-8")
    return command


def _refusal_of_large(body: bytes) -> pb.BaseCommand:
    kind = number_in(body, pb.BaseCommand.DESCRIPTOR, "type")
    said = f"A command of {len(body)} bytes with more than {FIELDS_OF_LARGE_MAX} fields"
    field = _field_of_type.get(kind or 0)
    if field is None:
        raise ProtocolError(said)
    found = number_in(body, pb.BaseCommand.DESCRIPTOR, field, "request_id")
    return _refusal(NO_REQUEST if found is None else int(found), said)


def _refusal(request_id: int, said: str) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.ERROR)
    command.error.request_id = request_id
    command.error.error = pb.MetadataError
    command.error.message = said
    return command


def encode_command(command: pb.BaseCommand) -> bytes:
    """The whole frame of a command without an entry."""
    body = command.SerializeToString()
    size = len(body)
    return _sizes.pack(size + 4, size) + body


def send_frame(command: pb.BaseCommand, entry: bytes) -> bytes:
    """The whole frame of a SEND or MESSAGE."""
    body = command.SerializeToString()
    size = len(body)
    return _sizes.pack(size + 4 + len(entry), size) + body + entry


def split_broker_metadata(section: bytes) -> tuple[pb.BrokerEntryMetadata | None, bytes]:
    """What follows the command of a MESSAGE, as the optional ``0x0e02`` block and the entry."""
    if section[:2] != _BROKER_METADATA_MAGIC.to_bytes(2, "big"):
        return None, section
    if len(section) < _block_head.size:
        raise ProtocolError("A broker entry metadata block without its size")
    _, size = _block_head.unpack_from(section)
    stop = _block_head.size + size
    if stop > len(section):
        raise ProtocolError(f"A broker entry metadata block of {size} bytes")
    try:
        metadata = pb.BrokerEntryMetadata.FromString(section[_block_head.size : stop])
    except DecodeError:
        raise ProtocolError("A broker entry metadata block that cannot be parsed") from None
    return metadata, section[stop:]


def with_broker_metadata(metadata: pb.BrokerEntryMetadata, entry: bytes) -> bytes:
    """An entry with the ``0x0e02`` block in front, for clients that negotiated it."""
    block = metadata.SerializeToString()
    return _block_head.pack(_BROKER_METADATA_MAGIC, len(block)) + block + entry


# Filled anew for each frame, which takes half the time of building a command. Not for threads:
# frames are written on the event loop.
_receipt_command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
_receipt = _receipt_command.send_receipt
_receipt_id = _receipt.message_id
_serialize_receipt = _receipt_command.SerializeToString
_message_command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
_message = _message_command.message
_message_id = _message.message_id
_serialize_message = _message_command.SerializeToString


def send_receipt(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int | None,
    ledger_id: int,
    entry_id: int,
) -> bytes:
    """The whole frame that confirms one SEND. Ids of -1 tell of a duplicate."""
    _receipt.producer_id = producer_id
    _receipt.sequence_id = sequence_id
    _receipt_id.ledgerId = ledger_id & _UNSIGNED
    _receipt_id.entryId = entry_id & _UNSIGNED
    if highest_sequence_id is None:
        body = _serialize_receipt()
    else:
        _receipt.highest_sequence_id = highest_sequence_id
        body = _serialize_receipt()
        _receipt.ClearField("highest_sequence_id")
    size = len(body)
    return _sizes.pack(size + 4, size) + body


def message_head(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivery_count: int,
    ack_set: Sequence[int] | None,
    consumer_epoch: int | None,
    entry_size: int,
) -> bytes:
    """What comes before an entry of ``entry_size`` bytes in the frame of a MESSAGE.

    ``partition`` -1, no redelivery, ``None`` and an empty ``ack_set`` are left out of the
    command: they are what a client assumes.
    """
    _message.consumer_id = consumer_id
    _message_id.ledgerId = ledger_id
    _message_id.entryId = entry_id
    if partition >= 0:
        _message_id.partition = partition
    else:
        _message_id.ClearField("partition")
    if redelivery_count or ack_set or consumer_epoch is not None:
        body = _serialize_rare_message(redelivery_count, ack_set, consumer_epoch)
    else:
        body = _serialize_message()
    size = len(body)
    return _sizes.pack(size + 4 + entry_size, size) + body


def _serialize_rare_message(
    redelivery_count: int, ack_set: Sequence[int] | None, consumer_epoch: int | None
) -> bytes:
    if redelivery_count:
        _message.redelivery_count = redelivery_count
    if ack_set:
        _message.ack_set.extend(ack_set)
    if consumer_epoch is not None:
        _message.consumer_epoch = consumer_epoch
    body = _serialize_message()
    _message.ClearField("redelivery_count")
    _message.ClearField("ack_set")
    _message.ClearField("consumer_epoch")
    return body
