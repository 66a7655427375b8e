"""Brokers in several processes over one data directory, and the end of each of the processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import FrameDecoder, encode_command
from tests.support.python_client import connected
from tests.support.secured import SUPER_USER, Secured, token
from tests.support.several_brokers import Load, is_alive, kill, owners, read, wait_for
from tests.support.standalone import Standalone


def brokers_of(folder: Path, count: int = 2, *words: str) -> Standalone:
    """A new process; on free ports, which are not those that others had and may have left."""
    return Standalone(folder / "data", "--brokers", f"{count}", *words)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with brokers_of(tmp_path_factory.mktemp("two")) as standalone:
        yield standalone


@pytest.fixture
def topics(request: pytest.FixtureRequest) -> list[str]:
    """Some in each bundle of the namespace, and new ones."""
    test = re.sub(r"\W", "-", request.node.name)
    return [f"{test}-{number}" for number in range(8)]


@pytest.mark.feature("F83", "F88")
def test_clients_use_all_brokers_by_one_address(two: Standalone, topics: list[str]) -> None:
    with connected(two) as client:
        with Load(client, topics) as load:
            wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in topics))
        load.wait_until_consumed()
        assert load.failures == []
        assert set(owners(two, topics).values()) == {
            broker["brokerServiceUrl"] for broker in two.info["brokers"]
        }
        for topic in topics:
            assert read(client, topic, load.receipts[topic]) == load.receipts[topic]


def test_a_client_gets_the_broker_that_it_names_or_an_error(two: Standalone) -> None:
    known = [two.info, *two.info["brokers"]]
    for url in [each["brokerServiceUrl"].removeprefix("pulsar://") for each in known] * 3:
        assert answer_to_connect(two, url).type == pb.BaseCommand.CONNECTED
    for url in ("localhost:1", "elsewhere:6650", "../../LOCK:1"):
        error = answer_to_connect(two, url).error
        assert error.error == pb.ServiceNotReady
        assert error.message == f"No broker '{url}' here; look the topic up again"


def answer_to_connect(standalone: Standalone, wanted: str) -> pb.BaseCommand:
    """At the shared port."""
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = "test"
    command.connect.proxy_to_broker_url = wanted
    host, _, port = standalone.service_url.removeprefix("pulsar://").partition(":")
    decoder = FrameDecoder(1 << 20)
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(encode_command(command))
        while data := client.recv(65536):
            if found := decoder.receive(data):
                return found[0][0]
    raise AssertionError("the connection was closed without an answer")


@pytest.mark.slow
def test_a_broker_that_stands_still_is_killed_and_its_clients_go_on(
    two: Standalone, topics: list[str]
) -> None:
    with connected(two) as client, Load(client, topics) as load:
        wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in topics))
        owner, stopped = owners(two, topics)[topics[0]], time.monotonic()
        served = [broker["brokerServiceUrl"] for broker in two.info["brokers"]]
        role = f"broker-{served.index(owner)}"
        pid = two.processes()[role]
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: not is_alive(pid))
        wait_for(lambda: load.times[topics[0]][-1] > stopped + 1.0)
        load.wait_until_consumed()
        assert load.failures == []
    wait_for(lambda: two.processes()[role] != pid)


@pytest.mark.parametrize("seconds", [14.0, pytest.param(40.0, marks=pytest.mark.chaos)])
def test_a_broker_that_goes_on_after_others_took_over_gives_up(
    two: Standalone, topics: list[str], seconds: float
) -> None:
    """The supervisor stands still as well, so that nobody kills it: its session ends alone."""
    admin = AdminClient(two.web_url)
    with connected(two) as before, connected(two) as other:
        with Load(before, topics) as load:
            for topic in topics:
                admin.call("POST", f"/persistent/public/default/{topic}/deduplicationEnabled", True)
            wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in topics))
            owner = owners(two, topics)[topics[0]]
            served = [broker["brokerServiceUrl"] for broker in two.info["brokers"]]
            role = f"broker-{served.index(owner)}"
            pid = two.processes()[role]
            for stopped in (two.pid, pid):
                os.kill(stopped, signal.SIGSTOP)
            until = time.monotonic() + seconds
            try:
                wait_for(lambda: has_another_owner(two, topics, owner))
                with Load(other, topics, "other") as meanwhile:
                    wait_for(lambda: all(meanwhile.receipts[topic] for topic in topics))
                    time.sleep(max(until - time.monotonic(), 0.0))
                    assert is_alive(pid)
            finally:
                for stopped in (pid, two.pid):
                    os.kill(stopped, signal.SIGCONT)
            going_on = time.monotonic()
            wait_for(lambda: not is_alive(pid))
            wait_for(lambda: all(load.times[topic][-1] > going_on + 1.0 for topic in topics))
        load.wait_until_consumed()
        assert load.failures == meanwhile.failures == []
        for topic in topics:
            sent = [*load.receipts[topic], *meanwhile.receipts[topic]]
            found = read(other, topic, sent)
            assert set(found) == set(sent)
            assert len(found) == len(set(found))
    wait_for(lambda: two.processes()[role] != pid)


def has_another_owner(standalone: Standalone, topics: list[str], owner: str) -> bool:
    """Of the first topic. Who is asked may have to ask the one that stands still, or be asked for
    what it does not know yet: an error is to be asked again, as clients do."""
    try:
        return owners(standalone, topics)[topics[0]] != owner
    except OSError:
        return False


@pytest.mark.feature("F60", "F82", "F84")
@pytest.mark.parametrize("role", ["broker-0", "bookie"])
def test_clients_go_on_when_a_process_is_killed(
    two: Standalone, topics: list[str], role: str
) -> None:
    with connected(two) as client:
        with Load(client, topics) as load:
            wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in topics))
            killed = time.monotonic()
            kill(two.processes()[role])
            wait_for(lambda: all(load.times[topic][-1] > killed + 1.0 for topic in topics))
        load.wait_until_consumed()
        assert load.failures == []
        # Far below the time of a session, and that for which a bookie is waited for.
        assert max(load.silence(topic, killed) for topic in topics) < 15.0
        for topic in topics:
            found = read(client, topic, load.receipts[topic])
            assert set(found) == set(load.receipts[topic])
            if role == "bookie":  # no client noticed anything, so none has sent anything twice
                assert found == load.receipts[topic]
    two.wait_for_log(f"{role} (process ")
    wait_for(lambda: all(map(is_alive, two.processes().values())))


def test_children_end_with_their_supervisor_and_another_one_takes_over(tmp_path: Path) -> None:
    first = brokers_of(tmp_path).start()
    with connected(first) as client:
        client.create_producer("t").send(b"before")
    children = first.processes()
    first.kill()
    # It waits for what is left of the first one: their locks, their ports.
    with brokers_of(tmp_path) as second:
        assert not any(is_alive(pid) for pid in children.values())
        with connected(second) as client:
            client.create_producer("t").send(b"after")
            assert read(client, "t", [b"before", b"after"]) == [b"before", b"after"]
        # It does not start what has ended anew where all was deleted.
        victim = second.processes()["bookie"]
        for each in second.data_dir.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        kill(victim)
        assert second.wait(60) == 1
        said = second.log_path.read_text().splitlines()[-1]
        assert "was deleted or replaced while it was in use" in said
        assert not (second.data_dir / "metadata.db").exists()


def test_a_second_supervisor_is_refused(two: Standalone) -> None:
    ready = (two.data_dir / "standalone.json").read_text()
    for args in ((), ("--brokers", "2")):
        command = [sys.executable, "-m", "pulsark", "standalone", "--data-dir", str(two.data_dir)]
        done = subprocess.run([*command, *args], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "in use by another process" in done.stderr
    assert (two.data_dir / "standalone.json").read_text() == ready
    assert all(map(is_alive, two.processes().values()))


def test_the_number_of_brokers_may_change(tmp_path: Path, topics: list[str]) -> None:
    sent = {topic: list[bytes]() for topic in topics}
    for brokers in (1, 2, 1):
        with brokers_of(tmp_path, brokers) as standalone, connected(standalone) as client:
            for topic in topics:
                assert read(client, topic, sent[topic]) == sent[topic]
                payload = f"{len(sent[topic])} by {brokers}".encode()
                client.create_producer(topic).send(payload)
                sent[topic].append(payload)


def test_a_metadata_store_that_is_older_than_its_bookies_is_refused(tmp_path: Path) -> None:
    """What only the brokers have changed of it counts, too: they tell the bookies."""
    store, copy = tmp_path / "data" / "metadata.db", tmp_path / "older.db"
    for count, payload in ((1, b"before"), (2, b"after")):
        with brokers_of(tmp_path, count) as standalone, connected(standalone) as client:
            client.create_producer("t").send(payload)
        if not copy.exists():
            shutil.copy(store, copy)
    shutil.move(store, tmp_path / "newer.db")
    with pytest.raises(
        RuntimeError, match=r"metadata\.db is not there, and bookie .* is in service"
    ):
        brokers_of(tmp_path).start()
    shutil.copy(copy, store)
    with pytest.raises(RuntimeError, match="start once with --adopt; nothing is deleted"):
        brokers_of(tmp_path).start()
    shutil.move(tmp_path / "newer.db", store)
    with brokers_of(tmp_path) as standalone, connected(standalone) as client:
        assert read(client, "t", [b"before", b"after"]) == [b"before", b"after"]
    shutil.copy(copy, store)
    with brokers_of(tmp_path, 2, "--adopt") as standalone, connected(standalone) as client:
        client.create_producer("t").send(b"adopted")
    with brokers_of(tmp_path) as standalone, connected(standalone) as client:
        assert read(client, "t", [b"before", b"adopted"]) == [b"before", b"adopted"]


def test_what_keeps_a_broker_from_starting_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] - 20  # what broker 1 needs is taken
        ports = ["--broker-port", str(port), "--web-port", "0", "--flight-port", "0"]
        command = [sys.executable, "-m", "pulsark", "standalone", "--data-dir", str(tmp_path / "d")]
        done = subprocess.run(
            [*command, "--brokers", "2", *ports], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert f"brokerServicePort: port {port + 20} is in use" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_clients_log_in_at_the_broker_that_serves_them(tmp_path: Path, topics: list[str]) -> None:
    """In the clear by one address, and over TLS by the ports of each broker."""
    with Secured(tmp_path, "--brokers", "2") as standalone:
        own = {broker["brokerServiceUrlTls"] for broker in standalone.info["brokers"]}
        assert len(own) == 2
        for url in (standalone.service_url, standalone.info["brokerServiceUrlTls"]):
            client = pulsar.Client(
                url,
                authentication=pulsar.AuthenticationToken(token(SUPER_USER)),
                tls_trust_certs_file_path=str(standalone.trust_path),
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            for topic in topics:
                client.create_producer(topic).send(url.encode())
                assert read(client, topic, [url.encode()])[-1] == url.encode()
            client.close()
        stranger = pulsar.Client(
            standalone.service_url,
            authentication=pulsar.AuthenticationToken("no token"),
            operation_timeout_seconds=5,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        with pytest.raises(pulsar.PulsarException):
            stranger.create_producer(topics[0])
        stranger.close()
