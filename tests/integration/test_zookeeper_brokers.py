"""Brokers that share a ZooKeeper instead of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from tests.support.python_client import connected
from tests.support.several_brokers import (
    Load,
    kill,
    owners,
    processes,
    read,
    spread,
    wait_for,
)
from tests.support.standalone import Standalone

TOPICS = [f"zookeeper-{number}" for number in range(8)]


@pytest.mark.feature("F67", "F68")
def test_topics_move_between_brokers_that_share_a_zookeeper(
    zookeeper: ZooKeeperAddress, tmp_path: Path
) -> None:
    def using(url: str) -> Standalone:
        flags = (f"metadataStoreUrl={url}", "metadataStoreSessionTimeoutMillis=5000")
        sets = [word for flag in flags for word in ("--set", flag)]
        return Standalone(tmp_path / "data", "--brokers", "2", *sets)

    with using(str(zookeeper)) as standalone:
        assert not (tmp_path / "data" / "metadata.db").exists()
        with connected(standalone) as client:
            with Load(client, TOPICS) as load:
                wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in TOPICS))
                spread(standalone, TOPICS)
                before = owners(standalone, TOPICS)
                spread(standalone, TOPICS, first=1)  # each bundle moves on
                after = owners(standalone, TOPICS)
                assert all(before[topic] != after[topic] for topic in TOPICS)
                counts = {topic: len(load.receipts[topic]) for topic in TOPICS}
                wait_for(lambda: all(len(load.receipts[t]) > counts[t] for t in TOPICS), 60)
                kill(processes(standalone)["broker-0"])
                counts = {topic: len(load.receipts[topic]) for topic in TOPICS}
                wait_for(lambda: all(len(load.receipts[t]) > counts[t] for t in TOPICS), 60)
            load.wait_until_consumed()
            assert load.failures == []
            for topic in TOPICS:  # sent again after the kill, what had no receipt is there twice
                found = read(client, topic, load.receipts[topic])
                assert list(dict.fromkeys(found)) == load.receipts[topic]
    # With another ZooKeeper, nothing is served.
    with pytest.raises(RuntimeError, match="has no metadata store"):
        using(f"{zookeeper}-other").start()
