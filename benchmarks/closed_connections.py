"""What closed connections leave in memory: ``python -m benchmarks.closed_connections``.

Clients come one after the other; each sends 5 MB of a frame that it never finishes, and hangs up.
Afterwards the broker must hold at most 64 MiB more than before. Exits 1 if it holds more.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.brokers import Pulsark
from benchmarks.fairness import Client, started
from benchmarks.usage import resident_bytes

CONNECTIONS = 10_000
FRAME_BYTES = 5 * 1024 * 1024
SENT_BYTES = 5_000_000
GROWTH_BYTES_MAX = 64 << 20
WARM_UP = 20
SETTLE_SECONDS = 2.0


def unfinished(client: Client) -> None:
    """Most of a frame, and then nothing any more."""
    head = struct.pack(">II", FRAME_BYTES, 10)
    client.socket.sendall(head + bytes(SENT_BYTES))
    client.socket.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        broker = Pulsark(Path(home) / "broker")
        started(broker)
        try:
            for _ in range(WARM_UP):
                unfinished(Client(broker.port))
            time.sleep(SETTLE_SECONDS)
            before = most = resident_bytes(broker.pid)
            for number in range(options.connections):
                unfinished(Client(broker.port))
                if number % 100 == 0:
                    most = max(most, resident_bytes(broker.pid))
            time.sleep(SETTLE_SECONDS)
            after = resident_bytes(broker.pid)
            broker.check()
        finally:
            broker.stop()
    mib = 1 << 20
    print(
        f"{options.connections} connections: {before / mib:.0f} MiB before, {most / mib:.0f} at "
        f"most, {after / mib:.0f} afterwards"
    )
    sys.exit(after - before > GROWTH_BYTES_MAX)


if __name__ == "__main__":
    main()
