"""Each call to ZooKeeper is decided truly, whatever becomes of its answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import ConnectionLoss, NoNodeError

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.zookeeper import nodes
from pulsark.metadata.zookeeper.calls import Calls
from tests.sim.simulation import Simulation
from tests.support.ledgers import simulate

DEADLINE = 10.0
STEPS = st.lists(
    st.sampled_from(["read", "write", "answer", "refuse", "cut", "connect", "wait", "end"]),
    max_size=25,
)


class Server:
    """What was sent and has no answer yet. It does what it answers, and may do what it does not."""

    def __init__(self) -> None:
        self.client_id = (7, b"")
        self.sent: list[tuple[int, Any]] = []
        self.ever_sent: set[int] = set()

    def submit(self, request: int, done: Any) -> None:
        self.sent.append((request, done))
        self.ever_sent.add(request)


@given(STEPS, st.booleans())
def test_each_call_is_decided_by_its_answer_or_its_deadline(steps: list[str], ends: bool) -> None:
    async def main(sim: Simulation) -> None:
        server, loop = Server(), asyncio.get_running_loop()
        calls = Calls(cast("Any", server), loop, DEADLINE)
        made: dict[int, tuple[bool, asyncio.Task[Any]]] = {}
        answered: dict[int, str] = {}
        ended = False

        def cut() -> None:
            calls.is_connected = False
            lost, server.sent = server.sent, []
            for _, done in lost:
                done(None, ConnectionLoss(), 0)

        for step in steps:
            if step in ("read", "write"):
                number = len(made)
                call = (calls.read if step == "read" else calls.write)(number, "/a")
                made[number] = (step == "read", asyncio.ensure_future(call))
                await asyncio.sleep(0)
            elif step in ("answer", "refuse") and server.sent:
                number, done = server.sent.pop(0)
                answered.setdefault(number, step)
                done("yes" if step == "answer" else None,
                     None if step == "answer" else NoNodeError(), 1)  # fmt: skip
            elif step == "cut":
                cut()
            elif step == "connect" and not ended:
                calls.is_connected = True
                calls.send_waiting()
            elif step == "wait":
                await asyncio.sleep(DEADLINE / 3)
            elif step == "end" and ends and not ended:
                ended = True
                cut()
                calls.end("it is over")
            await asyncio.sleep(0)
        await asyncio.sleep(2 * DEADLINE)
        for number, (reads, task) in made.items():
            assert task.done(), f"call {number} is never decided"
            error = task.exception()
            if error is None:
                assert answered[number] == "answer"
            elif isinstance(error, nodes.NoNodeError):
                assert answered[number] == "refuse"
            elif isinstance(error, OutcomeUnknownError):
                assert not reads
                assert number in server.ever_sent, "nothing of it can have happened"
            elif not reads and isinstance(error, MetadataRefusedError):
                assert number not in server.ever_sent, "it may have happened"
            else:
                assert isinstance(error, MetadataError)

    simulate(main)
