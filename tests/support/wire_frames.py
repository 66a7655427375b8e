"""The client's side of the frames, for tests that speak the protocol themselves."""

from __future__ import annotations

from typing import NamedTuple

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry, checksum_ok, entry_metadata, entry_payload
from pulsark.wire.frames import FrameDecoder, send_frame, split_broker_metadata

Command = pb.BaseCommand


class Received(NamedTuple):
    """A MESSAGE, taken apart."""

    message: pb.CommandMessage
    broker_metadata: pb.BrokerEntryMetadata | None
    metadata: pb.MessageMetadata
    payload: bytes
    entry: bytes


def entry_of(payload: bytes, sequence_id: int = 0, **metadata: object) -> bytes:
    """An entry with one message; ``metadata`` are fields of ``MessageMetadata``."""
    fields = {"producer_name": "test", "sequence_id": sequence_id, "publish_time": 1, **metadata}
    return build_entry(pb.MessageMetadata(**fields), payload)  # type: ignore[arg-type]


def send_command(producer_id: int, sequence_id: int, messages: int = 1) -> pb.BaseCommand:
    """A SEND."""
    command = Command(type=Command.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = sequence_id
    command.send.num_messages = messages
    return command


def publish(producer_id: int, sequence_id: int, payload: bytes, **metadata: object) -> bytes:
    """The frame of a SEND with one message."""
    entry = entry_of(payload, sequence_id, **metadata)
    return send_frame(send_command(producer_id, sequence_id), entry)


def received(command: pb.BaseCommand, section: bytes) -> Received:
    """Take apart a MESSAGE as ``FrameDecoder`` gives it; its checksum must be right."""
    broker_metadata, entry = split_broker_metadata(section)
    assert checksum_ok(entry)
    return Received(
        command.message, broker_metadata, entry_metadata(entry), entry_payload(entry), entry
    )


def decode_all(
    stream: bytes, max_frame_size: int = 6 << 20
) -> list[tuple[pb.BaseCommand, bytes | None]]:
    """Every command of a stream that ends with a whole frame."""
    return FrameDecoder(max_frame_size).receive(stream)
