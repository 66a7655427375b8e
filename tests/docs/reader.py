"""A reader who does what a document says, with the test's own addresses."""

from __future__ import annotations

import contextlib
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

from tests.docs.snippets import ROOT, Snippet, shell_commands
from tests.support.s3_server import S3Server
from tests.support.standalone import Standalone

COMMAND_SECONDS = 180
"""A session over Spark Connect, which starts two JVMs, takes two minutes on a busy machine."""
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))

# A standalone that a document starts takes free ports: the well-known ones may be in use.
PORTS = ("brokerServicePort", "webServicePort", "flightServicePort")
FREE_PORTS = {f"PULSARK_{key}": "0" for key in PORTS}
OBJECT_STORE = "https://s3.example.org"
"""Stands for a server that tests start."""
FREE_PORTS_TLS = {f"PULSARK_{key}Tls": "0" for key in PORTS}


class Reader:
    """Runs snippets of one document in order; ``output`` is all that was printed."""

    def __init__(self, home: Path, broker: Standalone, spark: Callable[[], Any]) -> None:
        self.home = home
        self.output = ""
        self.started: list[subprocess.Popen[str]] = []
        self._leaving = contextlib.ExitStack()
        self._running: list[tuple[subprocess.Popen[str], Path, Path]] = []
        self._spark = spark
        self._names: dict[str, Any] = {}
        self._environment = {"PYTHONUNBUFFERED": "1", "SPARK_TESTING": "1"}
        """Spark Connect's server takes a free port then, in place of 15002."""
        self._real = {
            "pulsar://localhost:6650": broker.info.get("brokerServiceUrl", ""),
            "http://localhost:8080": broker.info.get("webServiceUrl", ""),
            "grpc://localhost:8815": broker.info.get("flightUrl", ""),
            "/lake/": f"{home}/lake/",
            "/etc/pulsark/": f"{home}/",
        }
        """What stands for addresses and directories of documents."""

    def run(self, snippet: Snippet) -> None:
        """Do what the snippet says; raises if it fails or if nobody knows how to run it."""
        how = {
            "sh": self._shell,
            "python": self._python,
            "sql": self._sql,
            "json": lambda snippet: json.loads(snippet.text),
            "properties": self._properties,
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
        if OBJECT_STORE in text and OBJECT_STORE not in self._real:
            self._real[OBJECT_STORE] = self._leaving.enter_context(
                S3Server(self.home / "s3.log")
            ).url
        for written, real in self._real.items():
            text = text.replace(written, real)
        return text

    def _shell(self, snippet: Snippet) -> None:
        for command in shell_commands(snippet):
            words = shlex.split(command, comments=True)
            if words[0] == "export":
                self._export(words[1:])
            elif words[0] == "make":
                # They install, or take minutes: it is enough here that they exist.
                assert words[1] in MAKE_TARGETS, f"{snippet.place}: no target {words[1]}"
            elif words[:2] == [".venv/bin/pulsark", "standalone"]:
                if "--conf" in words and self._has_tls(words[words.index("--conf") + 1]):
                    self._start(words, FREE_PORTS_TLS)
                else:
                    self._start_and_stop(words)
            else:
                refused = command.endswith("# refused")
                self._call(snippet, ["bash", "-c", self._here(command)], refused=refused)

    def _has_tls(self, conf: str) -> bool:
        return "Tls" in (self.home / conf).read_text()

    def _export(self, words: list[str]) -> None:
        for word in words:
            name, _, value = word.partition("=")
            self._environment[name] = self._here(value).replace("$PWD", str(self.home))

    def _properties(self, snippet: Snippet) -> None:
        """The first line is a comment with the file's name."""
        head, _, text = snippet.text.partition("\n")
        (self.home / head.removeprefix("# ")).write_text(self._here(text))

    def _call(self, snippet: Snippet, command: list[str], *, refused: bool = False) -> None:
        done = subprocess.run(
            command,
            cwd=self.home,
            env={**os.environ, **self._environment},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
        )
        self.output += done.stdout
        said = f"{snippet.place}: {command[-1]}\n{done.stdout[-4000:]}"
        assert (done.returncode != 0) if refused else (done.returncode == 0), said

    def _start_and_stop(self, words: list[str]) -> None:
        """Run a standalone as written until it is ready; then stop it as Ctrl-C does."""
        self._start(words, FREE_PORTS)
        self._stop_newest()

    def _start(self, words: list[str], ports: dict[str, str]) -> None:
        """Run a standalone until it is ready; what comes later finds its ports over TLS."""
        flags = dict(itertools.pairwise(words))
        ready = self.home / flags.get("--data-dir", "data") / "standalone.json"
        log = self.home / f"standalone-{len(self.started)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                words,
                cwd=self.home,
                env={**os.environ, **ports},
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
        info = json.loads(ready.read_text())
        for written, key in (
            ("pulsar+ssl://localhost:6651", "brokerServiceUrlTls"),
            ("https://localhost:8443", "webServiceUrlTls"),
            ("grpc+tls://localhost:8816", "flightUrlTls"),
        ):
            if key in info:
                self._real[written] = info[key]
        self._running.append((process, log, ready))

    def leave(self) -> None:
        """Stop what was started and still runs."""
        while self._running:
            self._stop_newest()
        self._leaving.close()

    def _stop_newest(self) -> None:
        process, log, ready = self._running.pop()
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
