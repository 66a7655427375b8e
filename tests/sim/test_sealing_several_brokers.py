"""A broker loses its session at a step of sealing, and goes on with what it has begun.

The steps are those of the disk, which writes files and commits of the table's log; those of the
metadata store, before and after each write of the intent, of the ledgers' documents and of the
record without the intent; and the call to the broker that has the table. Whoever is next seals the
same entries. No row is lost and none is there twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from pulsark.errors import PulsarkError
from pulsark.metadata.changes import Change
from tests.support.table_brokers import PARTITIONS, TableBrokers, ThreeBrokers, two_brokers

COUNT = 6
MORE = 2
"""What the next owner publishes."""


class Losing:
    """A broker's session, which is lost at its ``at``th step."""

    def __init__(self, brokers: TableBrokers, host: str, at: int, *, overtaken: bool) -> None:
        self.all = ThreeBrokers(brokers)
        self.steps: list[str] = []
        self._brokers = brokers
        self._host = host
        self._at = at
        self._overtaken = overtaken
        self._sealing = False

    async def run(self) -> None:
        """Everything, to the end of the next owner's work."""
        brokers = self._brokers
        await self.all.start()
        broker = brokers.brokers[f"{self._host}:8080"]
        mine = []
        for number in range(PARTITIONS):
            owner = await self.all.owner(brokers.name(number))
            await brokers.publish(owner, number, COUNT)
            if owner is broker:
                mine.append(number)
        for number in mine:  # a part that is sealed, and one that is being sealed
            await brokers.seal(broker, number)
            await brokers.publish(broker, number, COUNT)
        self._hear_steps()
        self._sealing = True
        with suppress(PulsarkError):
            await brokers.seal(broker, *mine)
        self._sealing = False
        assert broker.metadata.session.has_ended == (self._at > 0)
        await self.seal_all()
        await self.check()

    def _hear_steps(self) -> None:
        brokers, store = self._brokers, self._brokers.stores[self._host]
        commit = store.commit

        async def stepped(changes: Sequence[Change]) -> Sequence[int]:
            paths = " ".join(change.path for change in changes)
            await self._step(f"before {paths}")
            made = await commit(changes)
            await self._step(f"after {paths}")
            return made

        store.commit = stepped  # type: ignore[method-assign]
        brokers.calls.before = lambda asked: self._step("before the call")
        brokers.calls.after = lambda asked: self._step("after the call")
        if not self._overtaken:  # nobody else goes on within a step of the disk
            brokers.disk.before_step = lambda: self._count("disk")  # type: ignore[attr-defined]

    async def _step(self, what: str) -> None:
        if self._count(what) and self._overtaken:
            await self.seal_all()

    def _count(self, what: str) -> bool:
        """Whether the session was lost at this step."""
        if not self._sealing:
            return False
        self.steps.append(what)
        if len(self.steps) != self._at:
            return False
        self._sealing = False
        self.all.lose(self._host)
        return True

    async def seal_all(self) -> None:
        """Whoever owns a partition then publishes a little, and seals all there is of it."""
        for number in range(PARTITIONS):
            for attempt in reversed(range(60)):
                try:
                    owner = await self.all.owner(self._brokers.name(number))
                    if len(self._brokers.sent[number]) % COUNT == 0:
                        await self._brokers.publish(owner, number, MORE)
                    await self._brokers.seal(owner, number)
                    break
                except PulsarkError:
                    if not attempt:
                        raise
                    await asyncio.sleep(1)

    async def check(self) -> None:
        """Each entry is a row, once, and consumers get each, once."""
        self._brokers.check_whole()
        for number in range(PARTITIONS):
            read = await self._brokers.read(
                await self.all.owner(self._brokers.name(number)), number
            )
            assert len({at for at, _ in read}) == len(read) == len(self._brokers.sent[number])


def lost_at(host: str, at: int, *, overtaken: bool) -> list[str]:
    """Run it; the steps that there were."""
    steps: list[str] = []

    @two_brokers()
    async def scenario(brokers: TableBrokers) -> None:
        losing = Losing(brokers, host, at, overtaken=overtaken)
        await losing.run()
        steps.extend(losing.steps)

    scenario()
    return steps


@pytest.mark.feature("F83")
@pytest.mark.parametrize("overtaken", [False, True], ids=["followed", "overtaken"])
@pytest.mark.parametrize("host", ["a", "b"], ids=["of-the-table", "of-a-partition"])
def test_a_session_that_is_lost_at_any_step_of_sealing_neither_loses_nor_doubles_rows(
    host: str, overtaken: bool
) -> None:
    steps = lost_at(host, 0, overtaken=overtaken)
    assert any("/tables/" in step for step in steps) == (host == "a")
    assert any("call" in step for step in steps) == (host == "b")
    for at in range(1, len(steps) + 1):
        lost_at(host, at, overtaken=overtaken)
