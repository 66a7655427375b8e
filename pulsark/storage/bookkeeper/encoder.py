"""Encodes runs of entries once for all bookies that they go to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pulsark.storage.bookkeeper.limits import IN_FLIGHT_BYTES_MAX, IN_FLIGHT_ENTRIES_MAX
from pulsark.wire.bookkeeper.digests import PLAIN, LedgerKey
from pulsark.wire.bookkeeper.requests import AddFrames, encode_adds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.storage.bookie.bookie import EntryRun

_PART_ENTRIES: Final = IN_FLIGHT_ENTRIES_MAX // 2
_PART_BYTES: Final = IN_FLIGHT_BYTES_MAX // 4
_KEYS_MAX: Final = 4096


class LedgerKeys:
    """How each ledger's entries are checked. Those made by other clients may differ."""

    def __init__(self, usual: LedgerKey = PLAIN) -> None:
        self.usual = usual
        self._others: dict[int, LedgerKey] = {}

    def of(self, ledger_id: int) -> LedgerKey:
        """The key of a ledger, as far as its metadata were seen; else the usual one."""
        return self._others.get(ledger_id, self.usual)

    def note(self, ledger_id: int, key: LedgerKey | None) -> None:
        """A ledger's metadata say this; ``None``: nothing."""
        if key is None or (key.digest, key.password) == (self.usual.digest, self.usual.password):
            self._others.pop(ledger_id, None)
            return
        while len(self._others) >= _KEYS_MAX:
            del self._others[next(iter(self._others))]
        self._others[ledger_id] = key


class Part(NamedTuple):
    """Some consecutive entries of a run, encoded."""

    first: int
    entries: int
    frames: AddFrames


class RunEncoder:
    """Remembers the last run, because a writer gives it to one bookie after the other."""

    def __init__(self, keys: LedgerKeys) -> None:
        self._keys = keys
        self._last: tuple[EntryRun, int, list[Part]] | None = None

    def encode(self, run: EntryRun, flags: int) -> list[Part]:
        """The parts of a run, none too large to be under way at once."""
        last = self._last
        if last is not None and last[0] is run and last[1] == flags:
            return last[2]
        key = self._keys.of(run.ledger_id)
        length = run.preceding_bytes
        parts = []
        for start, payloads in _cut(run.payloads):
            first = run.first_entry_id + start
            frames = encode_adds(
                run.ledger_id, first, run.last_confirmed, length, payloads, key, flags
            )
            if start or len(payloads) < len(run.payloads):
                length += sum(map(len, payloads))
            parts.append(Part(first, len(payloads), frames))
        self._last = (run, flags, parts)
        return parts


def _cut(payloads: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    if len(payloads) <= _PART_ENTRIES and sum(map(len, payloads)) <= _PART_BYTES:
        yield 0, payloads
        return
    start = size = 0
    for i, payload in enumerate(payloads):
        more = len(payload)
        if i > start and (size + more > _PART_BYTES or i - start >= _PART_ENTRIES):
            yield start, payloads[start:i]
            start, size = i, 0
        size += more
    yield start, payloads[start:]
