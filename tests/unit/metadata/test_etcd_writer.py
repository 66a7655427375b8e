"""Writes of one path to etcd are made in the order of their calls, whoever goes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from pulsark.metadata.changes import Put
from pulsark.metadata.etcd.layout import Layout
from pulsark.metadata.etcd.messages import Json, TxnAnswer
from pulsark.metadata.etcd.writer import Writer


class HeldServer:
    """Finds nothing, and makes writes one by one, when it is told to."""

    def __init__(self) -> None:
        self.writes: list[asyncio.Future[None]] = []

    async def read(self, operations: Sequence[Json], deadline: float) -> TxnAnswer:
        return TxnAnswer(True, 1, [[] for _ in operations])

    async def write(self, *_: object) -> TxnAnswer:
        held = asyncio.get_running_loop().create_future()
        self.writes.append(held)
        await held
        return TxnAnswer(True, len(self.writes), [])


async def steps() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_write_whose_caller_goes_while_it_waits_lets_no_later_one_pass_an_earlier_one() -> None:
    async def scenario() -> None:
        server = HeldServer()
        writer = Writer(cast(Any, server), Layout(""), 7)

        def write(value: bytes) -> asyncio.Task[object]:
            return asyncio.create_task(writer.write((Put("/a", value),), 1e9))

        first, second = write(b"1"), write(b"2")
        await steps()
        third = write(b"3")
        await steps()
        second.cancel()
        await steps()
        fourth = write(b"4")
        await steps()
        assert len(server.writes) == 1, "only the first is under way"
        for number, task in enumerate((first, third, fourth), 1):
            server.writes[-1].set_result(None)
            await task
            await steps()
            assert len(server.writes) == min(number + 1, 3)
        assert second.cancelled()
        assert not writer._busy

    asyncio.run(scenario())
