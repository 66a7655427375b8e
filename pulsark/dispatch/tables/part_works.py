"""What a broker does in its partitions of a table because the table's broker asks.

The other side is ``everywhere``. Everything may be asked for twice, and late: what is written is
written under the claims of this broker's bundles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.tables.erasing_here import (
    ErasingHere,
    ack_from_json,
    ids_from_json,
    prepared_to_json,
)
from pulsark.dispatch.tables.rejoining import TableLedger
from pulsark.errors import NotAttachedError, StorageError
from pulsark.limits import READS_PER_TURN_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.tables.progress import SealingProgress
    from pulsark.dispatch.tables.rejoining import Rejoining
    from pulsark.dispatch.tables.table_waits import Leases, TidyQueue
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.wire.topic_name import TopicName

LEDGERS_A_PAGE: Final = 5000
"""Ledgers of a partition that one answer lists."""


class PartWorks:
    """``everywhere`` has what can be asked for."""

    def __init__(
        self,
        ownership: Ownership,
        topics: Topics,
        rejoining: Rejoining,
        progress: SealingProgress,
        leases: Leases,
        tidy_queue: TidyQueue,
        erasing: ErasingHere,
    ) -> None:
        self._ownership = ownership
        self._leases = leases
        self._tidy_queue = tidy_queue
        self._topics = topics
        self._rejoining = rejoining
        self._progress = progress
        self.erasing = erasing

    async def do(self, base: TopicName, asked: dict[str, Any]) -> dict[str, Any]:
        """Do one work; ``PulsarkError`` if it was not done, or not all of it."""
        names = [
            base if number < 0 else base.with_partition(number)
            for number in asked.get("partitions", ())
        ]
        match asked["do"]:
            case "beginErasure":
                ids = ids_from_json(asked["ids"])
                done = await self.erasing.begin(base, names, asked["asker"], asked["token"], ids)
                return prepared_to_json(done)
            case "tellErased":
                self.erasing.tell(asked["token"], list(map(ack_from_json, asked["acks"])))
                return {}
            case "endErasure":
                return {"lasted": await self.erasing.end(asked["token"])}
            case "forgetContent":
                return {"consumers": await self.erasing.forget_content(names)}
            case "listed":
                return {"ledgers": await self._listed(names, asked["first"])}
            case "rejoin":
                (name,) = names
                ledgers = [TableLedger(*ledger) for ledger in asked["ledgers"]]
                return {"listed": sorted(await self._rejoining.rejoin(name, ledgers))}
            case "ends":
                return await self._ends(names, asked["ledgers"])
            case "attached":
                await self._attached(base, names, asked["ledgers"])
                return {}
            case "repaired":
                await self._repaired(names)
                return {}
        raise StorageError(f"this broker does not know how to do {asked['do']!r}")

    async def _listed(self, names: Sequence[TopicName], first: int) -> list[list[int]]:
        """Ids and lengths of ledgers of one partition that are not settled."""
        (name,) = names
        topic = await self._topics.load(name)
        found: list[list[int]] = []
        first = max(first, topic.ledger.unsettled_from)
        async for info in in_turns(topic.ledger.each_ledger(first), READS_PER_TURN_MAX):
            found.append([info.ledger_id, info.entries])
            if len(found) == LEDGERS_A_PAGE:
                break
        return found

    async def _ends(self, names: Sequence[TopicName], ledgers: Sequence[int]) -> dict[str, Any]:
        """How long ledgers are, and under which claims of bundles that is so."""
        ends, claims = [], {}
        for name in names:
            topic = await self._topics.load(name)
            claim = self._ownership.guard_of(await self._ownership.bundle_named(name))
            if claim is None:
                raise NotAttachedError(f"another broker serves {name} now")
            claims[claim.path] = claim.expected_version
            infos = map(topic.ledger.ledger, ledgers)
            ends += [[info.ledger_id, info.entries] for info in infos if info is not None]
        return {"ends": ends, "claims": list(map(list, claims.items()))}

    async def _attached(
        self, base: TopicName, names: Sequence[TopicName], ledgers: Sequence[int]
    ) -> None:
        """A job's files are in the table, and the lease is over."""
        self._leases.lend(base, "", 0)
        for name in names:
            topic = self._topics.get_loaded(name)
            if topic is not None and not topic.closed:
                await self._progress.attached(topic, ledgers, since=None)
        self._tidy_queue.later(base)

    async def _repaired(self, names: Sequence[TopicName]) -> None:
        """The table may have more of these partitions than was known."""
        for name in names:
            topic = self._topics.get_loaded(name)
            if topic is not None and not topic.closed:
                await self._progress.look_up(topic)
