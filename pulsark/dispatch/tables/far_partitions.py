"""Bulk publishes into partitions that other brokers own.

The broker of a topic's table makes a publish (``storage.table.bulk_publish``). Of the owner of
other partitions it asks, in this order, that it reserves ledgers there, that it holds appends back,
and that it lists the ledgers or forgets them (``reserved_for_others``).

Whether the ledgers exist is known to the table's record alone. When a partition is loaded whose
owner was not told in time, died or lost it, the table's broker is asked. That question waits until
the publish is over: ids are reserved and the intent is written while a publish has the table to
itself. So a call that is lost, late or made twice can only make a publish fail before its intent,
or delay what consumers of a partition see of it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from pulsark.errors import NotAttachedError, PulsarkError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pulsark.runtime import Clock
    from pulsark.storage.managed_ledger.reservations import Wanted
    from pulsark.wire.topic_name import TopicName

T = TypeVar("T")

CALL_SECONDS = 10.0
"""The longest time for an owner's step: other partitions hold appends back meanwhile."""

TELL_SECONDS = 20.0
"""So long an owner is told that ledgers exist. Then it asks by itself: longer than
``reserved_for_others.HELD_SECONDS``."""

RETRY_SECONDS = 0.2


class PartitionCalls(Protocol):
    """Calls to the owners of partitions, by their ids. ``PulsarkError``: what came of one is not
    known, or nothing."""

    async def check_writable(
        self, broker_id: str, base: TopicName, partitions: Sequence[int]
    ) -> None:
        """``ClientError`` if a client could not publish to one of them now."""

    async def reserve(
        self,
        broker_id: str,
        base: TopicName,
        asker: str,
        token: str,
        wanted: Wanted,
        rows: Mapping[int, int],
    ) -> dict[int, list[int]]:
        """Reserve ledgers under a token, which is new; returns their ids.

        ``asker`` is the process that asks: what it reserved goes with it. ``rows``: how many
        messages will be in a partition's.
        """

    async def hold_appends(self, broker_id: str, base: TopicName, token: str) -> None:
        """Let appends wait in all partitions of a reservation."""

    async def decide(self, broker_id: str, base: TopicName, token: str, exist: bool | None) -> None:
        """Tell what became of the ledgers. One that knows the reservation no more does nothing."""


class FarPartitions:
    """The partitions of one other broker, for one publish: ``Reserving``."""

    def __init__(
        self,
        calls: PartitionCalls,
        clock: Clock,
        broker_id: str,
        base: TopicName,
        process: str,
        token: str,
        rows: Mapping[int, int],
        is_gone: Callable[[str], bool],
    ) -> None:
        """``process`` is this one; ``is_gone`` says of a broker that it lives no more."""
        self._calls = calls
        self._clock = clock
        self._broker_id = broker_id
        self._base = base
        self._process = process
        self._token = token
        self._rows = rows
        self._is_gone = is_gone

    async def add(self, wanted: Wanted) -> dict[int, list[int]]:
        """See ``Reserving``."""
        found = await self._in_time(
            self._calls.reserve(
                self._broker_id, self._base, self._process, self._token, wanted, self._rows
            )
        )
        if {partition: len(ids) for partition, ids in found.items()} != {
            partition: len(new) for partition, new in wanted.items()
        }:
            raise NotAttachedError(f"the broker {self._broker_id} reserved something else")
        return found

    async def close_ledgers(self) -> None:
        """See ``Reserving``."""
        await self._in_time(self._calls.hold_appends(self._broker_id, self._base, self._token))

    async def decide(self, exist: bool | None) -> None:
        """See ``Reserving``. Good news is told again until it is heard, or the owner asks."""
        until = self._clock.monotonic() + TELL_SECONDS
        while True:
            with suppress(PulsarkError):
                await self._in_time(
                    self._calls.decide(self._broker_id, self._base, self._token, exist)
                )
                return
            late = self._clock.monotonic() >= until
            if not exist or late or self._is_gone(self._broker_id):
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def leave(self) -> None:
        """See ``Reserving``: the owner leaves by itself."""

    async def _in_time(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await call
        except TimeoutError:
            raise NotAttachedError(
                f"the broker {self._broker_id} did not answer within {CALL_SECONDS:g} s"
            ) from None
