"""The load client: one Java process with the official client, driven over pipes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmarks.maven import CACHE, class_path, java

SOURCE = Path(__file__).parent / "LoadClient.java"
LOCK = Path(__file__).parent / "pulsar-client-4.0.7.lock"
V5_SOURCE = Path(__file__).parent / "v5" / "V5LoadClient.java"
V5_LOCK = Path(__file__).parent / "pulsar-client-v5-5.0.0-M1.lock"


class LoadError(Exception):
    """The load client could not do what it was told."""


def compile_java(source: Path, jars: str, classes: Path) -> str:
    """Compile a source file, or those of a folder, unless up to date; the class path to run it."""
    sources = sorted(source.glob("*.java")) if source.is_dir() else [source]
    compiled = [classes / f"{each.stem}.class" for each in sources]
    newest = max(each.stat().st_mtime for each in sources)
    if any(not each.exists() or each.stat().st_mtime < newest for each in compiled):
        classes.mkdir(parents=True, exist_ok=True)
        command = [java("javac"), "-Xlint:all", "-d", str(classes), "-cp", jars]
        subprocess.run([*command, *map(str, sources)], check=True)
    return os.pathsep.join([jars, str(classes)])


class LoadClient:
    """A running load client. One command at a time."""

    def __init__(self, source: Path = SOURCE, lock: Path = LOCK) -> None:
        path = compile_java(source, class_path(lock), CACHE / "classes" / source.stem)
        command = [java(), "-Xms512m", "-Xmx512m", "-cp", path, source.stem]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, command: str, **options: object) -> None:
        """Send a command; ``end`` waits for its answer."""
        words = [command, *(f"{key}={_text(value)}" for key, value in options.items())]
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, float]:
        """The numbers that answer the command begun last. Raises ``LoadError``."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LoadError(f"the load client ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise LoadError(answer["error"])
        return {key: float(value) for key, value in answer.items()}

    def call(self, command: str, **options: object) -> dict[str, float]:
        """``begin`` and ``end``."""
        self.begin(command, **options)
        return self.end()

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
