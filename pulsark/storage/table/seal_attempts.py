"""Sealing a range of entries although one of them makes it fail.

No message may keep the others of its topic out of the table. A range at which sealing fails,
because of a defect that one of its messages reaches, is halved until the entry is found. That one
is kept as it was sent; the others are sealed as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from pulsark.errors import ProcessEndedError, StorageError, UnsealableError
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal_range import SealRange

log = logging.getLogger(__name__)

FAILURES_MAX: Final = 100
"""Attempts that may fail for one range, at its entries, before what is sealed of it has to do."""

Attempt = Callable[[SealRange, bool], Awaitable[list[DataFile]]]
"""Seals all of a range, or nothing; with true each entry is kept as it was sent."""


class SealAttempts:
    """The attempts for one range."""

    def __init__(self, attempt: Attempt, files: list[DataFile]) -> None:
        """``files`` gets what is written, in order."""
        self._attempt = attempt
        self._files = files
        self._failures = 0

    async def seal(self, wanted: SealRange) -> None:
        """Seal a range as far as it goes.

        ``UnsealableError``: up to an entry, which cannot be sealed at all.
        """
        rest = [wanted]
        while rest:
            part = rest.pop()
            error = await self._try(part)
            if error is not None:
                rest += await self._instead(part, error)

    async def _try(self, part: SealRange, *, as_sent: bool = False) -> StorageError | None:
        """What went wrong because of the entries, if anything."""
        try:
            self._files += await self._attempt(part, as_sent)
        except UnsealableError as e:
            return e
        except ProcessEndedError as e:
            if self._failures:
                return e
            # An operator may have killed it, or the kernel for want of memory. But not twice.
            self._failures += 1
            return await self._try(part, as_sent=as_sent)
        return None

    async def _instead(self, part: SealRange, error: StorageError) -> list[SealRange]:
        """What is to be done in place of a range that failed, the last first."""
        self._failures += 1
        if self._failures > FAILURES_MAX:
            raise UnsealableError(str(error))
        if part.first < part.last:
            middle = (part.first + part.last) // 2
            size = part.size // 2
            left = replace(part, last=middle, size=size)
            return [replace(part, first=middle + 1, size=size), left]
        where = f"entry {part.ledger_id}:{part.first}"
        log.warning("%s cannot be decoded, so it is sealed as it was sent: %s", where, error)
        error_again = await self._try(part, as_sent=True)
        if error_again is not None:
            raise UnsealableError(
                f"{where} cannot be sealed, not even as it was sent; it stays in the journal, and "
                f"so does all that is behind it in its ledger: {error_again}"
            )
        return []
