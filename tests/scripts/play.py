"""Plays a script: every command is carried out on a real broker, in virtual time.

After each command the clients wait for its answer, if it has one, and for a moment more. What they
heard is the output: client by client in the order in which they first came, each in its own order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from pulsark.errors import PulsarkError
from pulsark.wire.error_codes import error_code
from tests.scripts.commands import (
    administration,
    connections,
    consumers,
    producers,
    questions,
    shares,
)
from tests.scripts.options import Options
from tests.scripts.script import Line, Script, ScriptError
from tests.scripts.stage import Stage
from tests.sim.disk import Survival
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation

COMMANDS: dict[str, Callable[[Stage, Line, Options], Awaitable[None]]] = {
    **producers.COMMANDS,
    **consumers.COMMANDS,
    **connections.COMMANDS,
    **questions.COMMANDS,
    **administration.COMMANDS,
    **shares.COMMANDS,
}

_Lines = deque[tuple[int, Line]]
"""Commands that are left, each with the number of its block."""


def play(script: Script, simulation: Callable[[], Simulation] = Simulation) -> list[list[str]]:
    """The output of each block. Raises ``ScriptError``."""
    outputs: list[list[str]] = [[] for _ in script.blocks]
    lines = deque((number, line) for number, b in enumerate(script.blocks) for line in b.lines)
    stage = Stage()
    while lines:
        with simulation() as sim:
            sim.run_until_crash(_live(stage, sim, lines, outputs))
        stage.end()
    return [output or ["nothing"] for output in outputs]


async def _live(stage: Stage, sim: Simulation, lines: _Lines, outputs: list[list[str]]) -> None:
    """Start a broker and go on until it ends."""
    while lines and lines[0][1].verb == "broker":
        stage.machine.configure(lines.popleft()[1].options)
    await stage.start(sim)
    while lines:
        number, line = lines.popleft()
        try:
            if line.verb == "restart":
                await stage.stop()
            elif line.verb == "crash":
                stage.survival = _survival(Options(line))
            else:
                await _carry_out(stage, line)
        except ScriptError as error:
            raise ScriptError(f"{line.text}: {error}") from error
        outputs[number] += stage.heard()
        if line.verb == "restart":
            return
        if line.verb == "crash":
            raise SimulatedCrash("the script says so")  # a return would let callbacks run


def _survival(options: Options) -> Survival:
    """Everything when the process is killed; only what was synced when the power fails."""
    lost = options.text("lost", "power")
    options.check_empty()
    return "all" if lost == "nothing" else "none"


async def _carry_out(stage: Stage, line: Line) -> None:
    command = COMMANDS.get(line.verb)
    if command is None:
        raise ScriptError(f"No such command; there are {', '.join(sorted(COMMANDS))}")
    options = Options(line)
    stage.waits = options.flag("wait", True)
    try:
        await command(stage, line, options)
    except ValueError as error:
        raise ScriptError(str(error)) from error
    except PulsarkError as error:  # what an administrator did; clients get answers
        stage.said.append(f"refused, {error_code(error).name}")
    options.check_empty()
    if stage.waits:
        await stage.moment()
