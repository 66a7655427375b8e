"""Sealing messages whose keys are far larger than what is left of them when compressed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MEMORY_MB = 768
"""What the process may take; all keys together are larger."""

PROGRAM = """
import os
import sys
from pulsark.storage.roots.any_root import files_here
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.process.worker import limit_memory
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.entry import build_entry

KEY = "k" * (5 << 20)


def batch(i):
    head = pb.MessageMetadata(producer_name="p", sequence_id=i, publish_time=1)
    members = [
        (pb.SingleMessageMetadata(payload_size=0, partition_key=f"{j}{KEY}"), b"v")
        for j in range(4)
    ]
    return build_batch(head, members, pb.ZSTD)


def alone(i):
    head = pb.MessageMetadata(
        producer_name="p", sequence_id=i, publish_time=1, partition_key=f"{i}{KEY}"
    )
    return build_entry(head, b"v")


def named(i):
    head = pb.MessageMetadata(producer_name=f"{i}{KEY}", sequence_id=i, publish_time=1)
    members = [(pb.SingleMessageMetadata(payload_size=0), b"v") for _ in range(8)]
    return build_batch(head, members, pb.ZSTD)


def often(i):
    head = pb.MessageMetadata(producer_name=f"{i}{KEY}", sequence_id=i, publish_time=1)
    members = [(pb.SingleMessageMetadata(payload_size=0), b"v") for _ in range(500)]
    return build_batch(head, members, pb.ZSTD)


entry = {"batch": batch, "alone": alone, "named": named, "often": often}[sys.argv[2]]
limit_memory(int(sys.argv[3]))
entries = ((i, entry(i)) for i in range(int(sys.argv[4])))
[file] = seal(entries, 0, 5, [sys.argv[1]], files_here(os.environ), "n")
print(file.rows)
"""


@pytest.mark.parametrize(
    ("kind", "entries", "rows"),
    [("batch", 42, 168), ("alone", 160, 160), ("named", 21, 168), ("often", 4, 4)],
)
def test_all_keys_of_a_file_need_not_fit_memory(
    tmp_path: Path, kind: str, entries: int, rows: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), kind, str(MEMORY_MB), str(entries)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(rows)]
