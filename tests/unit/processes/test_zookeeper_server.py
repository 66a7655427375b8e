"""Where a ZooKeeper server on this machine listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pulsark.errors import ConfigError
from pulsark.processes import zookeeper_server
from pulsark.processes.java_process import HOST
from pulsark.processes.zookeeper_server import ZooKeeperServer


def test_a_server_that_is_started_again_has_its_port_if_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_server, "java", lambda: "java")
    first = ZooKeeperServer(tmp_path)
    first.command()
    assert ZooKeeperServer(tmp_path).port == first.port
    with socket.create_server((HOST, first.port)):
        assert ZooKeeperServer(tmp_path).port not in (0, first.port)
    assert ZooKeeperServer(tmp_path, 2181).port == 2181


@pytest.mark.parametrize(
    "damaged", [b"", b"clientPort=\n", b"clientPort=70000\n", b"\xff\x80clientPort=2181\n"]
)
def test_of_a_damaged_configuration_a_server_takes_no_port(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / zookeeper_server.CONFIGURATION).write_bytes(damaged)
    assert ZooKeeperServer(tmp_path).port > 1024


def test_what_a_machine_lacks_is_said_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_server, "java", lambda: "java")
    monkeypatch.setattr(zookeeper_server, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pulsark\[spark\]'"):
        ZooKeeperServer(tmp_path).command()
