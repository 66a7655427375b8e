"""Clients of three languages at several brokers that are moved, killed and started again.

So are the bookies that the brokers store entries on, and ZooKeeper.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pulsar
import pytest

from benchmarks.load import LOCK, compile_java
from benchmarks.maven import CACHE, class_path, java
from pulsark.admin_client.client import AdminClient
from tests.support.client_programs import built_with_go, create_partitioned_topic
from tests.support.local_cluster import LocalCluster
from tests.support.python_client import connected
from tests.support.several_brokers import kill, spread, wait_for
from tests.support.standalone import Standalone

PARTITIONS = 6
PARTS = [f"numbers-partition-{number}" for number in range(PARTITIONS)]
PAUSE_MS = 20
"""Between two messages of a program."""
PATIENCE = 60.0
"""Seconds; each wait takes a few on a machine that is idle."""

HERE = Path(__file__).parent


class Numbers:
    """A program that publishes numbers and consumes all that is published: see ``numbers.py``."""

    def __init__(self, language: str, command: list[str]) -> None:
        self.language = language
        self.receipts: defaultdict[int, list[str]] = defaultdict(list)
        self.delivered: set[str] = set()
        self.others: list[str] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish no more."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Its exit code does not matter: what it had to say it has said."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, rest = line.rstrip().partition(" ")
            partition, _, text = rest.partition(" ")
            if kind == "receipt":
                self.receipts[int(partition)].append(text)
            elif kind == "delivered":
                self.delivered.add(text)
            else:
                self.others.append(line.rstrip())


@pytest.fixture
def commands() -> dict[str, list[str]]:
    """What runs the program of each language, up to its arguments."""
    path = compile_java(HERE / "java" / "Numbers.java", class_path(LOCK), CACHE / "classes/numbers")
    return {
        "python": [sys.executable, "-m", "tests.clients.numbers"],
        "java": [java(), "-Xmx256m", "-cp", path, "Numbers"],
        "go": [built_with_go("./numbers", "numbers")],
    }


@pytest.mark.client("python", "java-4.0", "go")
@pytest.mark.feature("F54", "F60", "F82", "F83", "F84")
def test_clients_lose_and_double_nothing_while_brokers_move_die_and_come_back(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    with (
        Standalone(tmp_path / "data", "--brokers", "3") as three,
        all_there_once(three, commands) as programs,
    ):
        spread(three, PARTS, first=1)
        all_go_on(programs)
        restart(three, "broker-1", kill)
        all_go_on(programs)
        for number in range(3):
            restart(three, f"broker-{number}", terminate)
            all_go_on(programs)
        restart(three, "bookie", kill)
        all_go_on(programs)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.client("python", "java-4.0", "go")
@pytest.mark.feature("F60", "F68", "F70", "F82")
def test_clients_lose_and_double_nothing_while_each_part_of_a_cluster_is_restarted(
    commands: dict[str, list[str]], tmp_path: Path
) -> None:
    with (
        LocalCluster(tmp_path / "data", "--brokers", "2", "--bookies", "3") as cluster,
        all_there_once(cluster, commands) as programs,
    ):
        spread(cluster, PARTS, first=1)
        all_go_on(programs)
        for end in (terminate, kill):
            for role in cluster.processes():
                wait_for(lambda: cluster.bookies_are_available(), PATIENCE)
                restart(cluster, role, end)
                all_go_on(programs)


@contextmanager
def all_there_once(
    standalone: Standalone, commands: dict[str, list[str]]
) -> Iterator[list[Numbers]]:
    """Programs of all languages that publish and consume.

    Afterwards each has been told of every message, which is there once and in order.
    """
    AdminClient(standalone.web_url).call("POST", "/namespaces/public/default/deduplication", True)
    topic = create_partitioned_topic(standalone, "numbers", PARTITIONS)
    spread(standalone, PARTS)
    with ExitStack() as stack:
        programs = []
        for language, command in commands.items():
            program = Numbers(language, [*command, standalone.service_url, topic, f"{PAUSE_MS}"])
            stack.callback(program.end)
            programs.append(program)
        all_go_on(programs)
        yield programs
        for program in programs:
            program.stop()
        wait_for(lambda: all(program.others for program in programs), PATIENCE)
        assert {program.language: program.others for program in programs} == {
            program.language: ["flushed"] for program in programs
        }
        sent = {text for each in programs for texts in each.receipts.values() for text in texts}
        wait_for(lambda: all(program.delivered >= sent for program in programs), PATIENCE)
    with connected(standalone) as client:
        for number, part in enumerate(PARTS):
            stored = everything_in(client, part)
            for program in programs:
                mine = [text for text in stored if text.startswith(f"{program.language}-")]
                # The order in which it was sent, and each number once.
                assert mine == sorted(program.receipts[number], key=number_of)
                assert len(mine) == len(set(mine))


def all_go_on(programs: list[Numbers]) -> None:
    """Each of them gets receipts from each partition."""
    lists = [program.receipts[number] for program in programs for number in range(PARTITIONS)]
    wanted = [len(each) + 5 for each in lists]
    wait_for(lambda: all(map(lambda each, count: len(each) >= count, lists, wanted)), PATIENCE)


def restart(standalone: Standalone, role: str, end: Callable[[int], None]) -> None:
    """End a process, and wait until the supervisor has another one."""
    pid = standalone.processes()[role]
    end(pid)
    wait_for(lambda: standalone.processes()[role] != pid, PATIENCE)


def terminate(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def number_of(text: str) -> int:
    return int(text.rpartition("-")[2])


def everything_in(client: pulsar.Client, topic: str) -> list[str]:
    """From its beginning to its end."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(timeout_millis=10_000).data().decode())
    reader.close()
    return found
