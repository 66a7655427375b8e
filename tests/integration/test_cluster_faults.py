"""What fails around the brokers of a cluster, under load: ZooKeeper, bookies and the network."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Literal

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient, AdminError
from pulsark.metadata import paths
from pulsark.wire.topic_name import TopicName
from tests.support.checked_load import CheckedLoad, owner_by, owner_of
from tests.support.faulty_cluster import BrokerProcess, FaultyCluster
from tests.support.python_client import connected
from tests.support.s3_faults import Fault, FaultyStore
from tests.support.s3_server import ACCESS, BUCKET, S3Server
from tests.support.several_brokers import wait_for
from tests.support.tcp_proxy import BOTH, Direction

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SILENCE_SECONDS_MAX = 10.0
"""Far above what clients notice on a machine of its own; far below each outage."""


QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    """The object store of tables."""
    log = tmp_path_factory.mktemp("s3") / "log"
    with S3Server(log) as server, FaultyStore(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, store: FaultyStore
) -> Iterator[FaultyCluster]:
    with FaultyCluster(
        tmp_path_factory.mktemp("faults"),
        ACCESS,
        tableRoots=f"s3://{BUCKET}/cluster",
        objectStoreEndpoint=store.url,
        objectStoreTimeoutSeconds=2,
        objectStoreRetrySeconds=2,
        sealFreshnessSeconds=5,
        managedLedgerMaxEntriesPerLedger=1000,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
    ) as cluster:
        yield cluster


def starts(cluster: FaultyCluster) -> list[int]:
    return [broker.starts for broker in cluster.brokers]


def owner(cluster: FaultyCluster, topic: str) -> BrokerProcess:
    url = owner_of(cluster, topic)
    return next(broker for broker in cluster.brokers if broker.service_url == url)


# First what needs the proxies before bookies: those that register again do so without.


@pytest.mark.parametrize("seconds", [20, 60])
def test_a_broker_that_no_bookie_hears_goes_on_later(cluster: FaultyCluster, seconds: int) -> None:
    before = starts(cluster)
    with CheckedLoad(cluster, f"cut-from-bookies-{seconds}") as load:
        cut, _ = owner_and_other(cluster, load.topics[0])
        cluster.network.cut(cut.pid, *(bookie.port for bookie in cluster.bookies))
        time.sleep(seconds)
        cluster.network.mend()
        mended = time.monotonic()
        load.wait_until_all_go_on()
        print(f"cut from bookies: all go on after {time.monotonic() - mended:.2f} s")
    assert starts(cluster) == before


@pytest.mark.parametrize("directions", [BOTH[:1], BOTH[1:], BOTH], ids=["to", "from", "both"])
def test_publishing_goes_on_without_one_bookie(
    cluster: FaultyCluster, directions: tuple[Direction, ...]
) -> None:
    with CheckedLoad(cluster, f"cut-from-one-{'-'.join(directions).replace(' ', '-')}") as load:
        cut, _ = owner_and_other(cluster, load.topics[0])
        begun = time.monotonic()
        cluster.network.cut(cut.pid, cluster.bookies[0].port, directions=directions)
        time.sleep(45)
        silence = load.longest_silence(begun)
        cluster.network.mend()
        load.wait_until_all_go_on()
        print(f"cut {directions}: {silence:.2f} s, later {load.longest_silence(begun):.2f} s")
        assert silence < SILENCE_SECONDS_MAX


@pytest.mark.parametrize(("how", "seconds"), [("killed", 30), ("killed", 90), ("hangs", 20)])
def test_loaded_topics_go_on_without_zookeeper_and_sessions_outlive_it(
    cluster: FaultyCluster, how: str, seconds: int
) -> None:
    before = starts(cluster)
    with cluster.new_sessions(), CheckedLoad(cluster, f"zookeeper-{how}-{seconds}") as load:
        gone = time.monotonic()
        process = cluster.zookeeper.process
        process.kill() if how == "killed" else process.pause()
        time.sleep(seconds)
        silence = load.longest_silence(gone)
        cluster.start_zookeeper() if how == "killed" else process.resume()
        wait_for(lambda: _can_look_up(cluster, load.topics[0]), 60)
        load.wait_until_all_go_on()
        print(f"{how} {seconds}: {silence:.2f} s, later {load.longest_silence(gone):.2f} s")
        assert silence < SILENCE_SECONDS_MAX
    assert starts(cluster) == before


def test_loaded_topics_go_on_while_zookeeper_hangs_for_longer_than_sessions(
    cluster: FaultyCluster,
) -> None:
    """As it goes on, it may end sessions or first find what their brokers have sent meanwhile."""
    with cluster.new_sessions(), CheckedLoad(cluster, "zookeeper-hangs-long") as load:
        gone = time.monotonic()
        cluster.zookeeper.process.pause()
        time.sleep(90)
        silence = load.longest_silence(gone)
        cluster.zookeeper.process.resume()
        wait_for(lambda: _can_look_up(cluster, load.topics[0]), 120)
        load.wait_until_all_go_on()
        print(f"hangs 90: {silence:.2f} s, later {load.longest_silence(gone):.2f} s")
        assert silence < SILENCE_SECONDS_MAX


def test_brokers_begin_anew_when_zookeeper_has_ended_their_sessions(
    cluster: FaultyCluster,
) -> None:
    before = starts(cluster)
    with CheckedLoad(cluster, "all-cut-from-zookeeper") as load:
        begun = time.monotonic()
        for broker in cluster.brokers:
            cluster.network.cut(broker.pid, cluster.zookeeper.port)
        time.sleep(60)
        silence = load.longest_silence(begun)
        assert starts(cluster) == before
        cluster.network.mend()
        wait_for(lambda: all(a > b for a, b in zip(starts(cluster), before, strict=True)), 60)
        load.wait_until_all_go_on()
        print(f"cut 60: {silence:.2f} s, later {load.longest_silence(begun):.2f} s")
        assert silence < SILENCE_SECONDS_MAX


def _can_look_up(cluster: FaultyCluster, topic: str) -> bool:
    try:
        return bool(owner_of(cluster, topic))
    except OSError:
        return False


def test_an_empty_zookeeper_is_refused_and_the_right_one_is_served_again(
    cluster: FaultyCluster,
) -> None:
    zookeeper, kept = cluster.zookeeper, cluster.zookeeper.directory / "kept"
    with cluster.new_sessions(), CheckedLoad(cluster, "zookeeper-empty") as load:
        before = starts(cluster)
        zookeeper.process.kill()
        zookeeper.data.rename(kept)
        cluster.start_zookeeper()
        refused = "has no metadata store of Pulsark"
        wait_for(lambda: all(refused in b.log_path.read_text() for b in cluster.brokers), 120)
        assert all(a > b for a, b in zip(starts(cluster), before, strict=True))
        assert not _can_look_up(cluster, load.topics[0])
        zookeeper.process.kill()
        zookeeper.data.rename(zookeeper.directory / "empty")
        kept.rename(zookeeper.data)
        cluster.start_zookeeper()
        cluster.restart_bookies()
        load.wait_until_all_go_on()


def test_a_broker_that_zookeeper_does_not_hear_gives_its_topics_up_to_others(
    cluster: FaultyCluster,
) -> None:
    with CheckedLoad(cluster, "cut-from-zookeeper") as load:
        cut, other = owner_and_other(cluster, load.topics[0])
        had, begun = cut.starts, time.monotonic()
        cluster.network.cut(cut.pid, cluster.zookeeper.port)
        time.sleep(25)
        silence = load.longest_silence(begun)
        take_over(other, load.topics[0])
        took_over = time.monotonic()
        load.wait_until_all_go_on()
        assert cut.starts == had
        cluster.network.mend()
        wait_for(lambda: cut.starts > had, 60)
        cut.wait_until_ready()
        load.wait_until_all_go_on()
        print(f"cut from ZooKeeper: {silence:.2f} s; another owner after {took_over - begun:.2f} s")
        print(f"then {load.longest_silence(begun):.2f} s")
        assert silence < SILENCE_SECONDS_MAX


def take_over(broker: BrokerProcess, topic: str) -> None:
    """Ask it for a topic until it has it, as clients do once the owner's session is over."""

    def has_it() -> bool:
        try:
            return owner_by(broker, topic) == broker.service_url
        except OSError:
            return False

    wait_for(has_it, 90)
    client = pulsar.Client(broker.service_url, logger=QUIET)
    client.create_reader(topic, pulsar.MessageId.earliest).read_next(60_000)
    client.close()


def owner_and_other(cluster: FaultyCluster, topic: str) -> tuple[BrokerProcess, BrokerProcess]:
    found = owner(cluster, topic)
    return found, next(broker for broker in cluster.brokers if broker is not found)


def test_no_publish_waits_for_a_bookie_that_was_killed(cluster: FaultyCluster) -> None:
    with CheckedLoad(cluster, "bookie-killed") as load:
        begun = time.monotonic()
        cluster.bookies[1].process.kill()
        time.sleep(10)
        silence = load.longest_silence(begun)
        cluster.restart_bookies()
        load.wait_until_all_go_on()
        print(f"bookie killed: {silence:.2f} s, later {load.longest_silence(begun):.2f} s")
        assert silence < 2.0


def test_topics_of_a_broker_that_was_killed_are_there_again(cluster: FaultyCluster) -> None:
    with CheckedLoad(cluster, "broker-killed") as load:
        killed, _ = owner_and_other(cluster, load.topics[0])
        begun = time.monotonic()
        killed.kill()
        load.wait_until_all_go_on()
        print(f"broker killed: {load.longest_silence(begun):.2f} s")


def test_a_broker_that_stood_still_gives_up_what_others_have(cluster: FaultyCluster) -> None:
    with CheckedLoad(cluster, "broker-still") as load:
        still, other = owner_and_other(cluster, load.topics[0])
        had = still.starts
        os.kill(still.pid, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            take_over(other, load.topics[0])
            print(f"broker stands still: another owner after {time.monotonic() - begun:.2f} s")
            time.sleep(max(40 - (time.monotonic() - begun), 0))
        finally:
            os.kill(still.pid, signal.SIGCONT)
        wait_for(lambda: still.starts > had, 60)
        load.wait_until_all_go_on()
        print(f"broker stood still: {load.longest_silence(begun):.2f} s")


@pytest.mark.parametrize("fault", ["slow", "refused", "denied", "gone", "lost", "hang"])
def test_nobody_waits_for_an_object_store_that_fails(
    cluster: FaultyCluster, store: FaultyStore, fault: Fault | Literal["slow"]
) -> None:
    def rule(method: str, path: str) -> Fault:
        if fault == "slow":
            time.sleep(1.0)
            return "pass"
        # It does what is asked, and does not say so. A read has no effect to lose.
        return "pass" if fault == "lost" and method != "PUT" else fault

    before = starts(cluster)
    with CheckedLoad(cluster, f"store-{fault}") as load:
        store.seen.clear()
        store.rule, begun = rule, time.monotonic()
        try:
            wait_for(lambda: len(store.seen) >= 3 and time.monotonic() > begun + 15, 60)
            silence = load.longest_silence(begun)
        finally:
            store.let_go()
        load.wait_until_all_go_on()
        print(f"store {fault}: {silence:.2f} s, {len(store.seen)} requests")
        assert silence < SILENCE_SECONDS_MAX
    assert starts(cluster) == before


FOREIGN = [b"\xff\x00", b"{}", b"9 0 00000000\n{}", b"1 0 00000000\n{}"]
"""What others wrote, what a newer release wrote, and what is damaged."""


def test_foreign_and_newer_records_are_refused_and_harm_no_other_topic(
    cluster: FaultyCluster,
) -> None:
    """What is not asked for is written by hand beside brokers that serve."""
    topic, namespace = "foreign-records", "public/foreign"
    before = starts(cluster)
    admin = AdminClient(cluster.web_url)
    admin.call("PUT", f"/namespaces/{namespace}", {})
    with CheckedLoad(cluster, "beside-foreign") as load:
        with connected(cluster, operation_timeout_seconds=60) as client:
            sent = client.create_producer(topic).send(b"kept")
        with connected(cluster) as client:
            admin.call("PUT", f"/persistent/public/default/{topic}/unload")
            for data in FOREIGN:
                with cluster.overwritten(_records(topic, namespace), data):
                    for broker in cluster.brokers:
                        broker.wait_until_ready()
                    with pytest.raises(AdminError):
                        admin.call("GET", f"/namespaces/{namespace}")
                    with pytest.raises(pulsar.PulsarException):
                        client.create_reader(topic, pulsar.MessageId.earliest)
                    load.wait_until_all_go_on()
        with connected(cluster, operation_timeout_seconds=60) as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            assert reader.read_next(60_000).message_id() == sent
        assert admin.call("GET", f"/namespaces/{namespace}")
        load.wait_until_all_go_on()
    assert starts(cluster) == before


def _records(topic: str, namespace: str) -> list[str]:
    name = TopicName.parse(f"persistent://public/default/{topic}")
    return [
        paths.managed_ledger_path(name),
        paths.policies_path(namespace),
        paths.topic_policies_path(name),
        paths.broker_path("foreign:8080"),
        paths.assigned_bundle_path(f"{namespace}/0x00000000_0x10000000"),
        paths.bundle_owner_path(f"{namespace}/0x00000000_0x10000000"),
        paths.bundle_epoch_path(f"{namespace}/0x00000000_0x10000000"),
        paths.storage_root_path("foreign"),
        paths.CONFIGURATION,
    ]
