"""The sequence ids in an entry, as far as its SEND does not tell them.

A batch has the id of its first message in its SEND, or of its last one, or both: clients differ.
All pieces of a chunked message have the same id.
"""

from __future__ import annotations

from collections.abc import Iterator

from pulsark.wire.batch import read_messages
from pulsark.wire.entry import MAGIC, entry_metadata

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
    """Those of the messages of a batch, as far as they tell theirs.

    Raises ``ProtocolError`` if they cannot be read: encrypted, damaged, or larger than ``limit``
    bytes together.
    """
    for message, _ in read_messages(batch, limit):
        if message is not None and message.HasField("sequence_id"):
            yield message.sequence_id
