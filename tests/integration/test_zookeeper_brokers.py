"""Brokers that share a ZooKeeper, or an etcd, instead of a file."""

from __future__ import annotations

import asyncio
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.processes.zookeeper_server import ZooKeeperServer
from tests.support.etcd import EtcdServer
from tests.support.python_client import connected
from tests.support.several_brokers import (
    Load,
    kill,
    owners,
    read,
    spread,
    wait_for,
)
from tests.support.standalone import Standalone

TOPICS = [f"zookeeper-{number}" for number in range(4)]


SESSION_SECONDS = 5.0


@pytest.fixture(params=["zookeeper", pytest.param("etcd", marks=pytest.mark.chaos)])
def server(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ZooKeeperServer | EtcdServer]:
    """One that may be stopped."""
    make = ZooKeeperServer if request.param == "zookeeper" else EtcdServer
    server = make(tmp_path / "server")
    server.start()
    asyncio.run(server.ready())
    yield server
    server.process.stop()


@pytest.mark.feature("F67", "F68")
def test_brokers_that_share_a_server_move_topics_and_go_on_without_it(
    server: ZooKeeperServer | EtcdServer, tmp_path: Path
) -> None:
    is_etcd = isinstance(server, EtcdServer)
    url = str(server.address) if is_etcd else f"zk:{server.address}"

    def using(path: str) -> Standalone:
        flags = (
            f"metadataStoreUrl={url}/{path}",
            f"metadataStoreSessionTimeoutMillis={1000 * SESSION_SECONDS:.0f}",
        )
        sets = [word for flag in flags for word in ("--set", flag)]
        return Standalone(tmp_path / "data", "--brokers", "2", *sets)

    def can_look_up(standalone: Standalone) -> bool:
        try:
            return bool(owners(standalone, TOPICS))
        except urllib.error.HTTPError:
            return False

    def go_on(load: Load) -> None:
        counts = {topic: len(load.receipts[topic]) for topic in TOPICS}
        wait_for(lambda: all(len(load.receipts[t]) > counts[t] + 5 for t in TOPICS), 60)

    with using("one") as standalone:
        assert not (tmp_path / "data" / "metadata.db").exists()
        with connected(standalone) as client:
            with Load(client, TOPICS) as load:
                wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in TOPICS))
                spread(standalone, TOPICS)
                before = owners(standalone, TOPICS)
                spread(standalone, TOPICS, first=1)  # each bundle moves on
                after = owners(standalone, TOPICS)
                assert all(before[topic] != after[topic] for topic in TOPICS)
                go_on(load)
                there = standalone.processes()
                server.process.kill()
                gone = time.monotonic()
                while time.monotonic() < gone + 1.4 * SESSION_SECONDS:
                    go_on(load)
                server.start()
                asyncio.run(server.ready())
                wait_for(lambda: can_look_up(standalone), 60)
                spread(standalone, TOPICS)
                assert standalone.processes() == there
                kill(there["broker-0"])
                go_on(load)
            load.wait_until_consumed()
            assert load.failures == []
            for topic in TOPICS:  # sent again after the kill, what had no receipt is there twice
                found = read(client, topic, load.receipts[topic])
                assert list(dict.fromkeys(found)) == load.receipts[topic]
    # With another store, nothing is served.
    with pytest.raises(RuntimeError, match="has no metadata store"):
        using("other").start()
