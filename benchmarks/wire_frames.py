"""Time of the wire's hot path, one line an operation: ``python -m benchmarks.wire_frames``.

Decoding is timed as the event loop does it: a full receive buffer of SEND frames, every command
parsed, every entry cut out. The best of several rounds counts, because noise only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry, checksum_ok, parse_entry
from pulsark.wire.frames import (
    FrameDecoder,
    encode_command,
    message_head,
    send_frame,
    send_receipt,
)

ROUNDS = 40
SECONDS_A_ROUND = 0.01


def best_ns(operation: Callable[[], object]) -> float:
    """Nanoseconds of one call."""
    operation()
    started = time.perf_counter_ns()
    operation()
    calls = max(1, int(SECONDS_A_ROUND * 1e9 / max(1, time.perf_counter_ns() - started)))
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for _ in range(calls):
            operation()
        best = min(best, (time.perf_counter_ns() - started) / calls)
    return best


def sample_entry(size: int) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="standalone-1-2", sequence_id=123_456, publish_time=1_700_000_000_000
    )
    return build_entry(metadata, bytes(size))


def sample_frame(size: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = 1, 123_456
    command.send.num_messages = 1
    return send_frame(command, sample_entry(size))


def decode(size: int, read_bytes: int) -> float:
    """Nanoseconds to decode one SEND of ``size`` bytes, in reads of about ``read_bytes``."""
    frame = sample_frame(size)
    frames = max(1, 8 * read_bytes // len(frame))
    stream = memoryview(frame * frames)
    decoder = FrameDecoder(6 << 20)
    pieces = [stream[i : i + read_bytes] for i in range(0, len(stream), read_bytes)]

    def run() -> None:
        for piece in pieces:
            start = 0
            while start < len(piece):  # the kernel's copy is part of what is timed
                buffer = decoder.get_buffer()
                count = min(len(buffer), len(piece) - start)
                buffer[:count] = piece[start : start + count]
                start += count
                for _command, _entry in decoder.buffer_updated(count):
                    pass

    return best_ns(run) / frames


def decode_flow() -> float:
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, 500
    stream = encode_command(command) * 1000
    decoder = FrameDecoder(1 << 20)
    return best_ns(lambda: decoder.receive(stream)) / 1000


def decode_ack() -> float:
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
    command.ack.message_id.add(ledgerId=12_345, entryId=234_567)
    stream = encode_command(command) * 1000
    decoder = FrameDecoder(1 << 20)
    return best_ns(lambda: decoder.receive(stream)) / 1000


def main() -> None:
    entry = sample_entry(1024)
    timings = {
        "decode SEND 100 B": decode(100, 64 << 10),
        "decode SEND 1 KiB, reads of 64 KiB": decode(1024, 64 << 10),
        "decode SEND 1 KiB, reads of 256 KiB": decode(1024, 256 << 10),
        "decode SEND 1 KiB, one a read": decode(1024, len(sample_frame(1024))),
        "decode SEND 128 KiB": decode(128 << 10, 256 << 10),
        "decode SEND 1 MiB": decode(1 << 20, 256 << 10),
        "decode SEND 5 MiB": decode(5 << 20, 256 << 10),
        "decode FLOW": decode_flow(),
        "decode ACK of one id": decode_ack(),
        "checksum of 1 KiB": best_ns(lambda: checksum_ok(entry)),
        "parse_entry": best_ns(lambda: parse_entry(entry)),
        "send_receipt": best_ns(lambda: send_receipt(1, 123_456, None, 12_345, 234_567)),
        "message_head": best_ns(lambda: message_head(1, 12_345, 234_567, 3, 0, None, None, 1080)),
        "message_head with epoch": best_ns(
            lambda: message_head(1, 12_345, 234_567, 3, 0, None, 0, 1080)
        ),
    }
    for name, nanoseconds in timings.items():
        print(f"{name:<40}{nanoseconds / 1000:>10.2f} us")


if __name__ == "__main__":
    main()
