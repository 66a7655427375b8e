"""A real etcd for tests: one for all of them, or one of a test's own that may be stopped.

The program is the machine's own, or what ``.ci/etcd`` gets out of Debian's package. Where there is
none the tests are skipped.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.maven import CACHE
from pulsark.metadata.etcd.access import EtcdAccess
from pulsark.metadata.etcd.address import EtcdAddress, Server
from pulsark.metadata.etcd.gateway import Gateway
from pulsark.metadata.etcd.store import EtcdMetadataStore
from pulsark.processes.java_process import HOST, JavaProcess, free_port

START_SECONDS = 30.0

_numbers = itertools.count()


def program() -> str:
    """The server's program; skips the test if there is none."""
    own = CACHE / "etcd" / "usr" / "bin" / "etcd"
    found = shutil.which("etcd") or (str(own) if own.exists() else None)
    if found is None:
        pytest.skip("there is no etcd: .ci/etcd gets it where there are Debian's packages")
    return found


class EtcdServer:
    """One server with its data in a directory. It can be started again after its end."""

    def __init__(
        self, directory: Path, *options: str, tls: bool = False, access: EtcdAccess | None = None
    ) -> None:
        """With ``tls``, ``options`` name its certificate, and ``access`` whom to trust."""
        self.directory = directory
        self.options = options
        self.access = access or EtcdAccess()
        self._tls = tls
        self.port = free_port()
        self.process = JavaProcess()
        self._peers = free_port()

    @property
    def data(self) -> Path:
        """What a server keeps. If it is removed, the next start has an empty server."""
        return self.directory / "data"

    @property
    def address(self) -> EtcdAddress:
        """Where it is."""
        return EtcdAddress((Server(HOST, self.port, self._tls),))

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        clients, peers = str(self.address.servers[0]), f"http://{HOST}:{self._peers}"
        self.process.start(
            [
                program(), "--name=one", f"--data-dir={self.data}", "--log-level=error",
                f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}",
                f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=one={peers}", "--heartbeat-interval=50",
                "--election-timeout=500", *self.options,
            ],
            self.directory / "output.log",
        )  # fmt: skip
        asyncio.run(self.ready())

    async def ready(self) -> None:
        """Return once it serves."""
        gateway = Gateway(self.address, self.access, START_SECONDS)
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        try:
            await gateway.read("kv/range", {"key": "AA=="}, deadline)
        finally:
            gateway.close()


def start_server(directory: Path) -> dict[str, Any]:
    """A server for ``one_for_all``."""
    server = EtcdServer(directory / "server")
    server.start()
    return {"port": server.port, "pids": [server.process.pid]}


def address_of(started: Mapping[str, Any]) -> EtcdAddress:
    """Where that server is."""
    return EtcdAddress((Server(HOST, started["port"]),))


def below_a_root_of_its_own(address: EtcdAddress) -> EtcdAddress:
    """An address with a root that nobody else uses."""
    return replace(address, root=f"{address.root}/test-{os.getpid()}-{next(_numbers)}")


async def expire(store: EtcdMetadataStore) -> None:
    """End a store's session at the server, as the server does after a time."""
    gateway = Gateway(store.address, EtcdAccess(), START_SECONDS)
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    try:
        await gateway.write("lease/revoke", {"ID": str(store._lease.number)}, deadline)
    finally:
        gateway.close()
