"""The sequence ids in an entry that its SEND does not carry.

The SEND of a batch has the id of its first message, its last one, or both: clients differ. All
chunks of a message have the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.wire.batch import read_messages
from pulsark.wire.entry import MAGIC, entry_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_TAG = b"\xe8\x01"  # chunk_id, where it is present


def completes_message(entry: bytes) -> bool:
    """Whether an entry is a message of its own, or the last piece of one."""
    start = 10 if entry[:2] == MAGIC else 4
    if _CHUNK_TAG not in entry[start : start + int.from_bytes(entry[start - 4 : start], "big")]:
        return True
    metadata = entry_metadata(entry)
    return not metadata.HasField("chunk_id") or (
        metadata.chunk_id >= metadata.num_chunks_from_msg - 1
    )


def sequence_ids(batch: bytes, limit: int) -> Iterator[int]:
    """The sequence ids that a batch's messages carry.

    Raises ``ProtocolError`` if they cannot be read: encrypted, damaged, or larger than ``limit``
    bytes together.
    """
    for message, _ in read_messages(batch, limit):
        if message is not None and message.HasField("sequence_id"):
            yield message.sequence_id
