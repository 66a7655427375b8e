"""Clients of three languages at three brokers that are moved, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

from benchmarks.load import LOCK, compile_java
from benchmarks.maven import CACHE, class_path, java
from pulsark.admin_client.client import AdminClient
from tests.support.client_programs import built_with_go, create_partitioned_topic
from tests.support.python_client import connected
from tests.support.several_brokers import kill, processes, spread, wait_for
from tests.support.standalone import Standalone

PARTITIONS = 6
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
def three(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", "--brokers", "3") as standalone:
        yield standalone


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
    commands: dict[str, list[str]], three: Standalone
) -> None:
    AdminClient(three.web_url).call("POST", "/namespaces/public/default/deduplication", True)
    topic = create_partitioned_topic(three, "numbers", PARTITIONS)
    parts = [f"numbers-partition-{number}" for number in range(PARTITIONS)]
    spread(three, parts)
    with ExitStack() as stack:
        programs = []
        for language, command in commands.items():
            program = Numbers(language, [*command, three.service_url, topic, f"{PAUSE_MS}"])
            stack.callback(program.end)
            programs.append(program)
        all_go_on(programs)
        spread(three, parts, first=1)
        all_go_on(programs)
        restart(three, "broker-1", kill)
        all_go_on(programs)
        for number in range(3):
            restart(three, f"broker-{number}", terminate)
            all_go_on(programs)
        restart(three, "bookie", kill)
        all_go_on(programs)
        for program in programs:
            program.stop()
        wait_for(lambda: all(program.others for program in programs), PATIENCE)
        assert {program.language: program.others for program in programs} == {
            program.language: ["flushed"] for program in programs
        }
        sent = {text for each in programs for texts in each.receipts.values() for text in texts}
        wait_for(lambda: all(program.delivered >= sent for program in programs), PATIENCE)
    with connected(three) as client:
        for number, part in enumerate(parts):
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
    pid = processes(standalone)[role]
    end(pid)
    wait_for(lambda: processes(standalone)[role] != pid, PATIENCE)


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
