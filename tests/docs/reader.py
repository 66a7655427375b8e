"""A reader who does what a document says, with the test's own addresses."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.docs.snippets import Snippet, shell_commands
from tests.support.standalone import Standalone

ROOT = Path(__file__).parents[2]
COMMAND_SECONDS = 60
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))

# A standalone that a document starts takes free ports: the well-known ones may be in use.
FREE_PORTS = {
    "PULSARK_brokerServicePort": "0",
    "PULSARK_webServicePort": "0",
    "PULSARK_flightServicePort": "0",
}


class Reader:
    """Runs snippets of one document in order; ``output`` is all that was printed."""

    def __init__(self, home: Path, broker: Standalone, spark: Callable[[], Any]) -> None:
        self.home = home
        self.output = ""
        self.started: list[subprocess.Popen[str]] = []
        self._broker = broker
        self._spark = spark
        self._names: dict[str, Any] = {}

    def run(self, snippet: Snippet) -> None:
        """Do what the snippet says; raises if it fails or if nobody knows how to run it."""
        how = {
            "sh": self._shell,
            "python": self._python,
            "sql": self._sql,
            "json": lambda snippet: json.loads(snippet.text),
            "text": lambda snippet: None,
        }.get(snippet.language)
        assert how is not None, (
            f"{snippet.place}: a block of '{snippet.language}' is not run; name its language, "
            "or write above it: <!-- not run: reason -->"
        )
        how(snippet)

    def _here(self, text: str) -> str:
        """The text with the addresses and directories of this test."""
        # Spark derives the admin API's address from a service URL that is given: port 8080.
        option = '.option("serviceUrl", "pulsar://localhost:6650")'
        text = text.replace(option, f'{option}.option("adminUrl", "http://localhost:8080")')
        for written, real in (
            ("pulsar://localhost:6650", self._broker.service_url),
            ("http://localhost:8080", self._broker.web_url),
            ("grpc://localhost:8815", self._broker.flight_url),
            ("/lake/", f"{self.home}/lake/"),
        ):
            text = text.replace(written, real)
        return text

    def _shell(self, snippet: Snippet) -> None:
        for command in shell_commands(snippet):
            words = shlex.split(command, comments=True)
            if words[0] == "make":
                # They install, or take minutes: it is enough here that they exist.
                assert words[1] in MAKE_TARGETS, f"{snippet.place}: no target {words[1]}"
            elif words[:2] == [".venv/bin/pulsark", "standalone"]:
                self._start_and_stop(words)
            else:
                self._call(snippet, ["bash", "-c", self._here(command)])

    def _call(self, snippet: Snippet, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.home,
            # Spark Connect's server takes a free port then, in place of 15002.
            env={**os.environ, "PYTHONUNBUFFERED": "1", "SPARK_TESTING": "1"},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
        )
        self.output += done.stdout
        assert done.returncode == 0, f"{snippet.place}: {command[-1]}\n{done.stdout[-4000:]}"

    def _start_and_stop(self, words: list[str]) -> None:
        """Run a standalone as written until it is ready; then stop it as Ctrl-C does."""
        flags = dict(itertools.pairwise(words))
        ready = self.home / flags.get("--data-dir", "data") / "standalone.json"
        log = self.home / "standalone.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                words,
                cwd=self.home,
                env={**os.environ, **FREE_PORTS},
                text=True,
                stdout=out,
                stderr=out,
            )
        self.started.append(process)
        deadline = time.monotonic() + COMMAND_SECONDS
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(COMMAND_SECONDS) == 0, log.read_text()
        assert not ready.exists()
        self.output += log.read_text()

    def _python(self, snippet: Snippet) -> None:
        text = self._here(snippet.text)
        if "spark" not in text or "remote=" in text:
            # Sessions of Spark Connect and classic ones do not mix in one process.
            self._call(snippet, [sys.executable, "-c", text])
            return
        spark = self._spark()
        code = compile("\n" * snippet.line + text, str(snippet.document), "exec")
        exec(code, self._names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()

    def _sql(self, snippet: Snippet) -> None:
        statements = [s.strip() for s in snippet.text.split(";") if s.strip()]
        if "formats" in snippet.document.parts:
            with sqlite3.connect(":memory:") as database:
                for statement in statements:
                    database.execute(statement)
            return
        for statement in statements:
            for row in self._spark().sql(statement).collect():
                self.output += f"{row}\n"
