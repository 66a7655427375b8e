"""The index on disk: a short cut past the journal, never its replacement.

A checkpoint names an offset in the journal. Loading it and applying the journal from there gives
the same index as applying the whole journal. States may be encoded later than that offset was
noted, since applying a record twice changes nothing; only what the segments count is right no
sooner than after ``BookieIndex.recount``. A missing, damaged or foreign checkpoint
only costs the time to read the whole journal.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c

from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.storage.bookie.index import BookieIndex, IndexedLedger, SegmentState
from pulsark.storage.bookie.journal_format import array_of, from_little_endian, little_endian

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.runtime import Disk
    from pulsark.storage.bookie.journal_settings import JournalSettings

log = logging.getLogger(__name__)

WORTH_AT_CLOSE_BYTES = 1 << 20

CHECKPOINT_NAME = "index.checkpoint"
CHECKPOINT_VERSION = 1

_MAGIC = b"PLSKINDX"
_HEAD = struct.Struct("<8sHHI16sQQqIIII")
_SEGMENT = struct.Struct("<QQQqI")
_LEDGER = struct.Struct("<qqqqqIB3x")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class JournalOffset:
    """An offset between two groups of the journal."""

    segment_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint."""

    reached: JournalOffset
    index: BookieIndex
    removing: frozenset[int]
    """Segments whose removal was durable although their files may still be there."""


def encode_ledgers(states: Iterable[IndexedLedger]) -> bytes:
    """The part of a checkpoint for some ledgers."""
    pieces = []
    for s in states:
        words = s.words if s.words is not None else ()
        confirmed = (s.last_confirmed, s.confirmed_bytes)
        fields = (s.ledger_id, *confirmed, s.released, s.last_entry, len(words), s.fenced)
        pieces.append(_LEDGER.pack(*fields))
        if s.words is not None:
            pieces.append(little_endian(s.words))
    return b"".join(pieces)


class CheckpointDraft:
    """A checkpoint in the making: everything but the ledgers is noted when it begins."""

    def __init__(
        self,
        index: BookieIndex,
        reached: JournalOffset,
        instance_id: bytes,
        removing: Iterable[int],
    ) -> None:
        going = sorted(removing)
        head = [reached.segment_id, reached.offset, index.max_ledger_id]
        counts = [len(index.segments), len(index.tombstones), len(going)]
        self._head_fields = (_MAGIC, CHECKPOINT_VERSION, 0, 0, instance_id, *head, *counts)
        self._pieces = [_encode_segment(s) for s in index.segments.values()]
        dead = [n for pair in index.tombstones.items() for n in pair]
        self._pieces.append(little_endian(array_of("q", dead)))
        self._pieces.append(little_endian(array_of("Q", going)))
        self._ledgers = 0

    def add(self, states: Sequence[IndexedLedger]) -> None:
        """Append some ledgers as they are now."""
        self._pieces.append(encode_ledgers(states))
        self._ledgers += len(states)

    def finish(self) -> bytes:
        """The bytes of the file. May run in a worker."""
        data = b"".join((_HEAD.pack(*self._head_fields, self._ledgers), *self._pieces))
        return data + _CRC.pack(google_crc32c.value(data))


def _encode_segment(segment: SegmentState) -> bytes:
    ranges = array_of("Q", [n for damage in segment.damaged for n in damage])
    return _SEGMENT.pack(
        segment.segment_id,
        segment.epoch,
        segment.size,
        segment.damage_bound,
        len(segment.damaged),
    ) + little_endian(ranges)


def load_checkpoint(disk: Disk, path: str, instance_id: bytes) -> Checkpoint | str:
    """The checkpoint, or the reason why there is none to use."""
    try:
        size = disk.size(path)
        file = disk.open(path)
    except FileNotFoundError:
        return "no checkpoint"
    try:
        data = file.read(0, size)
    except OSError as e:
        return f"checkpoint cannot be read: {e}"
    finally:
        file.close()
    if len(data) < _HEAD.size + _CRC.size or not data.startswith(_MAGIC):
        return "checkpoint is not one"
    body = data[: -_CRC.size]
    if _CRC.unpack_from(data, len(body))[0] != google_crc32c.value(body):
        return "checkpoint fails its checksum"
    _, version, _, _, its_instance, *_ = _HEAD.unpack_from(body)
    if version != CHECKPOINT_VERSION:
        return f"checkpoint has version {version}"
    if its_instance != instance_id:
        return "checkpoint belongs to another bookie"
    return _decode(body)


def _decode(data: bytes) -> Checkpoint:
    (_, _, _, _, _, segment_id, offset, max_ledger_id, segments, tombstones, removing, ledgers) = (
        _HEAD.unpack_from(data)
    )
    index = BookieIndex()
    index.max_ledger_id = max_ledger_id
    position = _HEAD.size
    for _ in range(segments):
        number, epoch, size, bound, damages = _SEGMENT.unpack_from(data, position)
        position += _SEGMENT.size
        flat = from_little_endian("Q", data[position : position + 16 * damages])
        position += 16 * damages
        ranges = list(zip(flat[0::2], flat[1::2], strict=True))
        index.segments[number] = SegmentState(
            number, epoch, size, damaged=ranges, damage_bound=bound
        )
    dead = from_little_endian("q", data[position : position + 16 * tombstones])
    index.tombstones = dict(zip(dead[0::2], dead[1::2], strict=True))
    position += 16 * tombstones
    going = frozenset(from_little_endian("Q", data[position : position + 8 * removing]))
    position += 8 * removing
    for _ in range(ledgers):
        position = _decode_ledger(index, data, position)
    index.checkpoint_written(segment_id)
    return Checkpoint(JournalOffset(segment_id, offset), index, going)


def _decode_ledger(index: BookieIndex, data: bytes, position: int) -> int:
    ledger_id, *counts, words, fenced = _LEDGER.unpack_from(data, position)
    position += _LEDGER.size
    state = index.state(ledger_id)
    state.last_confirmed, state.confirmed_bytes, state.released, state.last_entry = counts
    state.fenced = bool(fenced)
    end: int = position + 8 * words
    if words:
        state.words = from_little_endian("Q", data[position:end])
    return end


class Checkpointer:
    """Counts what the journal gained since the last checkpoint."""

    def __init__(
        self,
        index: BookieIndex,
        ledger_dir: str,
        instance_id: bytes,
        settings: JournalSettings,
        runtime: Runtime,
    ) -> None:
        self._index = index
        self._path = f"{ledger_dir}/{CHECKPOINT_NAME}"
        self._instance_id = instance_id
        self.removing: set[int] = set()
        """Segments whose removal is durable while their file may still be there."""
        self._settings = settings
        self._disk = runtime.disk
        self._failed = False
        """Whether the last checkpoint could not be written, as the log has said."""
        self._reached = JournalOffset(0, 0)
        self._bytes = 0
        self._records = 0

    def journal_grew(self, reached: JournalOffset, size: int, records: int) -> None:
        """The index now holds the journal up to ``reached``, ``size`` bytes more than before."""
        self._reached = reached
        self._bytes += size
        self._records += records

    @property
    def due(self) -> bool:
        """Whether a start would have to read more than it should."""
        return (
            self._bytes >= self._settings.checkpoint_bytes
            or self._records >= self._settings.checkpoint_records
        )

    @property
    def worth_at_close(self) -> bool:
        """Whether a checkpoint now makes the next start quicker."""
        return self._bytes >= min(WORTH_AT_CLOSE_BYTES, self._settings.checkpoint_bytes)

    async def write(self, worker: Worker) -> None:
        """Write a checkpoint of the current offset. A disk error is logged: the next one tries.

        Ledgers are encoded in slices, so that the loop is never held up for long.
        """
        self._bytes = self._records = 0
        reached = self._reached
        draft = CheckpointDraft(self._index, reached, self._instance_id, self.removing)
        ids, a_turn = list(self._index.ledgers), self._settings.ledgers_a_turn
        for start in range(0, len(ids), a_turn):
            if start:
                await asyncio.sleep(0)
            ledgers = self._index.ledgers
            some = [ledgers[i] for i in ids[start : start + a_turn] if i in ledgers]
            draft.add(some)
        try:
            await run_in_worker(worker, lambda: self._disk.write_atomic(self._path, draft.finish()))
        except OSError as e:
            log.warning("cannot write checkpoint %s: %s", self._path, e)
            self._failed = True
            return
        if self._failed:
            self._failed = False
            log.warning("checkpoint %s is written again", self._path)
        self._index.checkpoint_written(reached.segment_id)
