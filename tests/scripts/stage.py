"""The stage of a script: the machine with its broker, all clients, and what they heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from typing import Any

from pulsark.wire.topic_name import TopicName
from tests.scripts.clients import Actor, Link
from tests.scripts.messages import Messages
from tests.scripts.options import Options
from tests.scripts.process import Machine, Process
from tests.scripts.script import Line, ScriptError
from tests.sim.disk import Survival
from tests.sim.simulation import Simulation
from tests.support.broker_clients import Client

MOMENT = 0.02
"""Seconds after which everything that was begun has come to its end, unless a timer runs."""
PATIENCE = 8.0
"""Seconds that a client waits for an answer."""


class Stage:
    """It outlives brokers: clients and what they know are kept over a crash."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.messages = Messages()
        self.process: Process
        self.began_ms = 0
        """When the first broker started."""
        self.survival: Survival | None = None
        """What the disk has after the crash that ends the broker."""
        self.waits = True
        """Whether the command under way waits for its answer."""
        self.said: list[str] = []
        """What an administrator was told."""
        self._links: dict[str, Link] = {}
        self._actors: dict[str, Actor] = {}

    # -- a life of the broker ---

    async def start(self, sim: Simulation) -> None:
        self.process = Process(self.machine, sim)
        await self.process.start()
        self.began_ms = self.began_ms or self.process.clock.now_ms()

    async def stop(self) -> None:
        """In order."""
        await self.process.stop()
        await asyncio.sleep(MOMENT)

    def end(self) -> None:
        """The broker is gone, and all connections with it. Nothing of it runs any more."""
        self.process.end()
        if self.survival is not None:
            self.machine.crash(self.survival)
            self.survival = None
        for link in self._links.values():
            link.lost = True

    # -- hearing ---

    def hear(self) -> None:
        """Every client takes what has come."""
        for link in self._links.values():
            link.hear()

    def heard(self) -> list[str]:
        """What all clients heard; what one of them heard in a row of one kind is one line."""
        self.hear()
        lines, self.said = self.said, []
        for link in self._links.values():
            for head, events in groupby(link.events, key=lambda event: event[0]):
                lines.append(head + ", ".join(text for _, text in events))
            link.events = []
        return lines

    async def moment(self, seconds: float = MOMENT) -> None:
        """Let time pass; clients hear meanwhile, and answer pings."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(min(1.0, end - loop.time()))
            self.hear()

    async def until(self, done: Callable[[], bool], patience: float) -> None:
        """Wait for something that a client expects, but not for ever."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience if self.waits else 0
        while not done() and loop.time() < end:
            await asyncio.sleep(0.001)
            self.hear()

    async def ask(self, actor: Actor, kind: int, **values: Any) -> None:
        """Send a request and wait for its answer, which is heard like everything else."""
        link = actor.link
        number = link.ask(actor, kind, **values)
        await self.until(lambda: number not in link.unanswered or link.lost, PATIENCE)

    # -- who is on it ---

    def actor(self, name: str) -> Actor:
        """A producer or consumer that was opened before."""
        actor = self._actors.get(name)
        if actor is None:
            raise ScriptError(f"There is no {name}")
        return actor

    def anybody(self) -> Actor:
        """Somebody with a connection."""
        return Actor("client", self._link("client"))

    def opened(self, line: Line, options: Options, kind: str) -> tuple[Actor, Line, Options]:
        """The actor that a line opens; what it was opened with counts again if it says no more."""
        name = line.words[0]
        before = self._actors.get(name)
        if before is not None and len(line.words) == 1 and not line.options:
            line = before.opened_with
            options = Options(line)
        link = self._link(options.text("on", name))
        links = link.consumers if kind == "consumer" else link.producers
        same = [number for number, actor in links.items() if actor.name == name]
        number = same[0] if same else len(links) + 1
        actor = Actor(name, link, number, line)
        if before is not None:
            actor.next_sequence = before.next_sequence
        self._actors[name] = links[number] = actor
        return actor, line, options

    def _link(self, name: str) -> Link:
        link = self._links.get(name)
        if link is None or link.lost:
            client = Client(self.process)  # type: ignore[arg-type]
            link = self._links[name] = Link(client, self.messages)
        return link


def topic_name(text: str) -> str:
    """The full name; ``t`` unless a script says another one."""
    return str(TopicName.parse(text or "t"))
