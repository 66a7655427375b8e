"""The supervisor's ports, which a process of the one before may still have."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.processes import supervisor as supervisor_module
from pulsark.processes.supervisor import Supervisor
from pulsark.runtime import Runtime


def listening(tmp_path: Path, leaves: bool) -> list[int]:
    """The ports of a supervisor that opens two, of which another process has the second one."""

    async def main() -> list[int]:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings = Settings(
            dataDir=str(tmp_path), brokerServicePort=0, webServicePort=port, standaloneBrokers=2
        )
        supervisor = Supervisor(settings, Runtime(), lambda _: None)
        if leaves:
            asyncio.get_running_loop().call_soon(taken.close)
        try:
            await supervisor._listen_soon()
            return [
                each[0].getsockname()[1] - port if key == "webServicePort" else 0
                for key, each in supervisor._sockets.items()
                if each
            ]
        finally:
            taken.close()
            await supervisor.stop()

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_DESERTED_LOOK_SECONDS", 0.0)


def test_a_port_that_is_about_to_be_free_is_waited_for(tmp_path: Path) -> None:
    assert listening(tmp_path, leaves=True) == [0, 0]


def test_a_port_that_another_process_keeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"webServicePort: port \d+ is in use"):
        listening(tmp_path, leaves=False)
