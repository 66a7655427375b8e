"""Java and jars from Maven Central for benchmarks and clients' tests."""

from __future__ import annotations

from pathlib import Path

from pulsark.processes import maven
from pulsark.processes.java_process import java

__all__ = ["CACHE", "class_path", "java"]

CACHE = Path(__file__).resolve().parents[1] / ".cache"


def class_path(lock: Path) -> str:
    """A class path of the lock's jars, fetched once. Raises ``ConfigError``."""
    return maven.class_path(lock, CACHE)
