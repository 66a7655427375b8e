"""Brokers in several processes over one data directory, and the end of each of the processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.python_client import connected
from tests.support.several_brokers import Load, is_alive, kill, processes, read, wait_for
from tests.support.standalone import Standalone

TOPICS = [f"t-{number}" for number in range(8)]


@pytest.fixture
def two(tmp_path: Path):  # type: ignore[no-untyped-def]
    standalone = Standalone(tmp_path / "data", "--brokers", "2")
    with standalone:
        yield standalone


def test_clients_use_all_brokers_by_one_address(two: Standalone) -> None:
    with connected(two) as client:
        with Load(client, TOPICS) as load:
            wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in TOPICS))
        assert load.failures == []
        for topic in TOPICS:
            assert read(client, topic, load.receipts[topic]) == load.receipts[topic]


def test_publishing_goes_on_when_the_process_of_the_bookies_is_killed(two: Standalone) -> None:
    with connected(two) as client:
        with Load(client, TOPICS) as load:
            wait_for(lambda: all(len(load.receipts[topic]) >= 20 for topic in TOPICS))
            bookie = processes(two)["bookie"]
            killed = time.monotonic()
            kill(bookie)
            wait_for(lambda: all(load.times[topic][-1] > killed + 0.5 for topic in TOPICS))
        assert load.failures == []
        assert max(load.silence(topic, killed) for topic in TOPICS) < 3.0
        for topic in TOPICS:
            assert set(read(client, topic, load.receipts[topic])) == set(load.receipts[topic])
    two.wait_for_log("bookie (process ")


def test_children_end_with_their_supervisor_and_another_one_takes_over(tmp_path: Path) -> None:
    standalone = Standalone(tmp_path / "data", "--brokers", "2").start()
    with connected(standalone) as client:
        client.create_producer("t").send(b"before")
    children = processes(standalone)
    standalone.kill()
    # It waits for what is left of the first one: their locks, their ports.
    with standalone:
        assert not any(is_alive(pid) for pid in children.values())
        with connected(standalone) as client:
            client.create_producer("t").send(b"after")
            assert read(client, "t", [b"before", b"after"]) == [b"before", b"after"]


def test_a_second_supervisor_is_refused(two: Standalone, tmp_path: Path) -> None:
    children = processes(two)
    for args in ((), ("--brokers", "2")):
        with pytest.raises(RuntimeError, match="in use by another process"):
            Second(tmp_path / "data", *args).start()
    assert all(is_alive(pid) for pid in children.values())


class Second(Standalone):
    """One that leaves the files of the first one alone."""

    @property
    def log_path(self) -> Path:
        return self.data_dir.with_suffix(".second.log")


def test_the_number_of_brokers_may_change(tmp_path: Path) -> None:
    sent = {topic: list[bytes]() for topic in TOPICS}
    for brokers in (1, 2, 1):
        standalone = Standalone(tmp_path / "data", "--brokers", f"{brokers}")
        with standalone, connected(standalone) as client:
            for topic in TOPICS:
                assert read(client, topic, sent[topic]) == sent[topic]
                payload = f"{len(sent[topic])} by {brokers}".encode()
                client.create_producer(topic).send(payload)
                sent[topic].append(payload)
