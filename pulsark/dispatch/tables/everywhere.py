"""What is done to a table as a whole, and so in all partitions, whichever brokers own them.

The table's broker does it. Of the owners of partitions it asks *works* (``part_works``), each a
document that says what to ``do``. Its own partitions are asked in the same way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pulsark.storage.managed_ledger.ledger_list import LedgerInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from pulsark.dispatch.tables.far_tables import FarTables
    from pulsark.dispatch.tables.part_works import PartWorks
    from pulsark.dispatch.tables.rejoining import TableLedger
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.metadata.resources import Resources
    from pulsark.wire.topic_name import TopicName

HERE = ""
"""In place of the id of another broker."""

LEDGERS_A_CALL = 5000
"""Ledgers that one call tells a partition."""


class Everywhere:
    """The asking side, of the table's broker."""

    def __init__(
        self,
        resources: Resources,
        catalog: TopicCatalog,
        far: FarTables,
        here: Callable[[], PartWorks],
    ) -> None:
        self._resources = resources
        self._catalog = catalog
        self._far = far
        self._here = here

    async def partitions(self, base: TopicName) -> list[int]:
        """The partitions of a topic that have been used; -1 is a topic without any."""
        parent = await self._resources.partitioned_topics.get(base)
        if parent is None:
            return [-1] if await self._catalog.exists(base) else []
        return [
            number
            for number in range(parent.partitions)
            if await self._catalog.exists(base.with_partition(number))
        ]

    async def places(self, base: TopicName, partitions: Iterable[int]) -> dict[str, list[int]]:
        """Partitions by the brokers that own them."""
        found: dict[str, list[int]] = {}
        for number in partitions:
            broker_id = (
                None if number < 0 else await self._far.broker_of(base.with_partition(number))
            )
            found.setdefault(broker_id or HERE, []).append(number)
        return found

    async def do(self, broker_id: str, base: TopicName, what: Mapping[str, Any]) -> Any:
        """Have a broker do a work."""
        if broker_id == HERE:
            return await self._here().do(base, dict(what))
        return await self._far.calls().work(broker_id, base, what)

    async def all(
        self, base: TopicName, partitions: Iterable[int], what: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Have each owner do a work in its partitions. All have ended when this raises."""
        places = await self.places(base, partitions)
        works = [
            self.do(broker_id, base, {**what, "partitions": numbers})
            for broker_id, numbers in places.items()
        ]
        found = await asyncio.gather(*works, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return found

    async def listed(self, base: TopicName) -> AsyncIterator[tuple[int, LedgerInfo]]:
        """Ledgers of all partitions that are not settled, as long as their owners know."""
        for number in await self.partitions(base):
            first = 0
            while True:
                (page,) = await self.all(base, [number], {"do": "listed", "first": first})
                for ledger_id, entries in page["ledgers"]:
                    yield number, LedgerInfo(ledger_id, entries, 0, 0)
                    first = ledger_id + 1
                if not page["ledgers"]:
                    break

    async def rejoin(
        self, base: TopicName, ledgers: Mapping[int, Sequence[TableLedger]]
    ) -> set[int]:
        """Let partitions list ledgers; returns those of them that they list now."""
        parent = await self._resources.partitioned_topics.get(base)
        known = range(parent.partitions) if parent is not None else [-1]
        listed: set[int] = set()
        for number in known:
            found = ledgers.get(number, ())
            for start in range(0, len(found), LEDGERS_A_CALL):
                some = list(map(list, found[start : start + LEDGERS_A_CALL]))
                (done,) = await self.all(base, [number], {"do": "rejoin", "ledgers": some})
                listed.update(done["listed"])
        return listed
