"""Reservations of ledgers in several partitions of a topic, which all come to be or none."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
    from pulsark.storage.managed_ledger.reservation import NewLedger, Reservation

    Wanted = Mapping[int, Sequence[NewLedger]]
    """By partition what is to be reserved."""


class Reserving(Protocol):
    """Some partitions, wherever they are. Its methods are those of ``Reservation``, in its order;
    ``leave`` comes last, whatever happened before."""

    async def add(self, wanted: Wanted) -> Mapping[int, Sequence[int]]:
        """Reserve ledgers; returns their ids by partition."""

    async def close_ledgers(self) -> None:
        """Let later appends wait, in all of them."""

    async def decide(self, exist: bool | None) -> None:
        """The ledgers exist, or never will, or that is not known. Does not raise."""

    async def leave(self) -> None:
        """Nothing more is heard of it."""


class Reservations:
    """Reservations in partitions that this process owns; ``ledgers`` has them by number."""

    def __init__(self, ledgers: Mapping[int, ManagedLedger]) -> None:
        self._ledgers = ledgers
        self._stack = AsyncExitStack()
        self._all: list[Reservation] = []

    async def add(self, wanted: Wanted) -> dict[int, list[int]]:
        """See ``Reserving``."""
        ids: dict[int, list[int]] = {}
        for partition, new in wanted.items():
            ledger = self._ledgers[partition]
            reservation = await self._stack.enter_async_context(ledger.reservation())
            self._all.append(reservation)
            ids[partition] = await reservation.add(new)
        return ids

    async def close_ledgers(self) -> None:
        """See ``Reserving``."""
        closing = [reservation.close_ledger() for reservation in self._all]
        # All have come to an end before anything is decided, also if one of them fails.
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                raise error

    async def decide(self, exist: bool | None) -> None:
        """See ``Reserving``."""
        await asyncio.gather(*[reservation.decide(exist) for reservation in self._all])

    async def leave(self) -> None:
        """See ``Reserving``."""
        await self._stack.aclose()
