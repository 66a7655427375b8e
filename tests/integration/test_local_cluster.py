"""Brokers over a real ZooKeeper and real bookies, as `pulsark cluster` starts them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from deltalake import DeltaTable

from pulsark.config.settings import Settings
from pulsark.metadata.etcd.address import EtcdAddress
from pulsark.processes.cluster_metadata import initialize_cluster
from tests.support.local_cluster import LocalCluster
from tests.support.python_client import connected
from tests.support.several_brokers import Load, is_alive, kill, owners, read, wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    settings = ("--set=sealFreshnessSeconds=1", f"--set=maxMessageSize={10 << 20}")
    with LocalCluster(folder / "data", *settings) as cluster:
        yield cluster


@pytest.mark.feature("F71")
def test_a_bookie_that_hangs_is_shown_as_away_until_it_goes_on(cluster: LocalCluster) -> None:
    all_there = dict.fromkeys(("bookie-1", "bookie-2", "bookie-3"), "available")
    wait_for(lambda: cluster.bookies() == all_there)
    bookie = cluster.processes()["bookie-3"]
    os.kill(bookie, signal.SIGSTOP)
    try:
        wait_for(lambda: cluster.bookies() == {**all_there, "bookie-3": "away"}, 60)
    finally:
        os.kill(bookie, signal.SIGCONT)
    wait_for(lambda: cluster.bookies() == all_there, 60)


def test_messages_larger_than_usual(cluster: LocalCluster) -> None:
    """Larger than a bookie's frames, and than half of its write cache, by default."""
    sent = [bytes([number]) * size for number, size in enumerate((5 << 20, 9 << 20, 100))]
    with connected(cluster) as client:
        producer = client.create_producer("large", batching_enabled=False)
        for payload in sent:
            producer.send(payload)
        assert read(client, "large", sent) == sent


@pytest.mark.feature("F60", "F65", "F68", "F70")
def test_clients_go_on_when_a_bookie_and_a_broker_are_killed(cluster: LocalCluster) -> None:
    topics = [f"killed-{number}" for number in range(4)]
    with connected(cluster) as client:
        with Load(client, topics) as load:
            wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in topics))
            kill(cluster.processes()["bookie-2"])
            before = {topic: len(load.receipts[topic]) for topic in topics}
            wait_for(lambda: all(len(load.receipts[t]) >= before[t] + 50 for t in topics))
            kill(cluster.broker_at(owners(cluster, topics)[topics[0]]))
            before = {topic: len(load.receipts[topic]) for topic in topics}
            wait_for(lambda: all(len(load.receipts[t]) >= before[t] + 50 for t in topics), 60)
        load.wait_until_consumed()
        assert load.failures == []
        for topic in topics:
            assert set(read(client, topic, load.receipts[topic])) >= set(load.receipts[topic])


def test_topics_are_tables_and_outlive_their_processes(cluster: LocalCluster) -> None:
    topic = "kept"
    sent = [f"{number}".encode() for number in range(500)]
    with connected(cluster) as client:
        producer = client.create_producer(topic)
        for payload in sent:
            producer.send_async(payload, None)
        producer.flush()
        assert read(client, topic, sent) == sent
    wait_for(lambda: _rows(cluster, topic) == len(sent), 60)
    before = cluster.processes()
    assert cluster.stop() == 0
    assert not [name for name, pid in before.items() if is_alive(pid)]
    cluster.start()
    with connected(cluster) as client:
        assert read(client, topic, sent) == sent


def _rows(cluster: LocalCluster, topic: str) -> int:
    """How many rows any engine reads from the topic's table."""
    where = f"{cluster.web_url}/admin/v2/persistent/public/default/{topic}/table"
    try:
        with urllib.request.urlopen(where, timeout=20) as answer:
            directory = json.load(answer)["directories"][0]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return 0  # nothing is sealed yet
    if not DeltaTable.is_deltatable(directory):
        return 0  # its log follows
    rows: int = DeltaTable(directory).to_pyarrow_dataset().count_rows()
    return rows


@pytest.mark.feature("F60", "F68")
def test_a_broker_with_metadata_in_etcd_has_entries_on_the_bookies(
    cluster: LocalCluster, etcd: EtcdAddress, tmp_path: Path
) -> None:
    ledgers = cluster.info["bookkeeperMetadataServiceUri"]
    words = {
        "clusterName": "in-etcd",
        "metadataStoreUrl": str(etcd),
        "bookkeeperMetadataServiceUri": ledgers,
        "tableRoots": str(tmp_path / "tables"),
        "brokerServicePort": "0",
        "webServicePort": "0",
        "flightServicePort": "0",
        "insecure": "true",
    }
    settings = Settings(clusterName="in-etcd", metadataStoreUrl=str(etcd))
    settings = replace(settings, bookkeeperMetadataServiceUri=ledgers)
    urls = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
    asyncio.run(initialize_cluster(settings, urls, existing_bookkeeper=True))
    (tmp_path / "tables").mkdir()
    options = [option for key, value in words.items() for option in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "pulsark", "broker", "--json", *options]
    with (tmp_path / "broker.log").open("wb") as log:
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert broker.stdout is not None
        first = broker.stdout.readline()
        assert first, (tmp_path / "broker.log").read_text()[-4000:]
        client = pulsar.Client(json.loads(first)["brokerServiceUrl"])
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        for number in range(20):
            producer.send(b"%d" % number)
        assert [consumer.receive(30_000).data() for _ in range(20)] == [
            b"%d" % number for number in range(20)
        ]
        client.close()
        broker.terminate()
        assert broker.wait(60) == 0, (tmp_path / "broker.log").read_text()[-4000:]
    finally:
        broker.kill()
        broker.wait()
        broker.stdout.close()
