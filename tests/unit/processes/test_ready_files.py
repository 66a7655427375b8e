"""The file with the addresses is there while they are served: not before, and not afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pulsark import standalone
from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.processes import local_cluster, supervisor
from pulsark.processes.duty import Disks
from pulsark.processes.local_cluster import LocalCluster
from pulsark.processes.supervisor import Supervisor
from pulsark.runtime import Runtime
from pulsark.standalone import Standalone
from pulsark.storage.table.root_identity import StorageRoots

DISKS = Disks(["bookie-1"], StorageRoots(("/root",), {}, {})).to_json()


class Child:
    """Is ready at once, and again while it is stopped, as one that was just restarted."""

    pid = 7
    made: ClassVar[list[Child]] = []

    def __init__(self, name: str, _: object, ready: Callable[[Any], None], **__: object) -> None:
        self.made.append(self)
        self._told = DISKS if name == "bookie" else {}
        self._ready = ready
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        self._ready(self._told)
        self.first.set_result(None)

    def again(self) -> None:
        self._ready(self._told)

    async def stop(self, _: float) -> None:
        self.again()


class Server:
    """The same in a cluster."""

    pid = 8
    made: ClassVar[list[Server]] = []

    def __init__(self, _: str, __: object, ready: Callable[[], None], *___: object) -> None:
        self.made.append(self)
        self._ready = ready

    async def start(self) -> None:
        self._ready()

    async def stop(self) -> None:
        self._ready()


class Nothing:
    """A server's program."""

    address = "127.0.0.1:1"

    def __init__(self, *_: object, **__: object) -> None:
        pass


async def nothing(*_: object) -> None:
    return


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    Child.made.clear()
    Server.made.clear()
    for module in (supervisor, local_cluster):
        monkeypatch.setattr(module, "KeptChild", Child)
    monkeypatch.setattr(local_cluster, "KeptServer", Server)
    for program in ("ZooKeeperServer", "BookieServer"):
        monkeypatch.setattr(local_cluster, program, Nothing)
    monkeypatch.setattr(local_cluster, "class_path", lambda *_: "")
    monkeypatch.setattr(local_cluster, "initialize_cluster", nothing)


def settings(path: Path) -> Settings:
    return Settings(
        dataDir=str(path), brokerServicePort=0, webServicePort=0, standaloneBrokers=2, bookies=1
    )


several = pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda s: Supervisor(s, Runtime()), "standalone.json"),
        (lambda s: LocalCluster(s, Path(s.dataDir), lambda _: None), "cluster.json"),
    ],
    ids=["standalone", "cluster"],
)


@several
def test_it_has_no_process_0_while_one_is_started_again(
    make: Callable[[Settings], Supervisor | LocalCluster], name: str, tmp_path: Path
) -> None:
    """A signal to that one is for the whole group of whoever sends it."""

    async def main() -> None:
        served = make(settings(tmp_path))
        before = await served.start()
        *others, last = [*Server.made, *Child.made]
        for each in others:
            each.pid = 0
        last.pid = 9
        last.again()
        after = json.loads((tmp_path / name).read_text())
        assert after["brokers"][1].pop("pid") == "9"
        assert before["brokers"][1].pop("pid") == "7"
        assert after == before
        await served.stop()

    asyncio.run(main())


@several
def test_it_is_gone_once_all_is_stopped(
    make: Callable[[Settings], Supervisor | LocalCluster], name: str, tmp_path: Path
) -> None:
    async def main() -> None:
        served = make(settings(tmp_path))
        await served.start()
        assert (tmp_path / name).exists()
        await served.stop()
        assert not (tmp_path / name).exists()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["one process", "standalone", "cluster"])
def test_what_a_killed_one_left_is_gone_while_the_next_one_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ("cluster.json" if name == "cluster" else "standalone.json")
    left.write_text("{}")

    def start(*_: object, **__: object) -> None:
        assert not left.exists()
        raise ConfigError("not yet")

    monkeypatch.setattr(Child, "start", start)
    monkeypatch.setattr(Server, "start", start)
    monkeypatch.setattr(standalone.OwnDisks, "open_store", start)

    async def main() -> None:
        made: Standalone | Supervisor | LocalCluster
        if name == "one process":
            made = Standalone(settings(tmp_path), Runtime(), lambda _: None)
        elif name == "standalone":
            made = Supervisor(settings(tmp_path), Runtime())
        else:
            made = LocalCluster(settings(tmp_path), tmp_path, lambda _: None)
        with pytest.raises(ConfigError, match="not yet"):
            await made.start()
        monkeypatch.undo()
        await made.stop()

    asyncio.run(main())
