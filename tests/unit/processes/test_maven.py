"""Locks of jars, and what Ivy is told of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.brokers import Pulsar
from benchmarks.load import LOCK
from pulsark.errors import ConfigError
from pulsark.processes import maven
from pulsark.processes.bookkeeper_server import LOCK as BOOKKEEPER_LOCK
from pulsark.processes.maven import Coordinate, _dependencies, _lock_lines, read_lock


@pytest.mark.parametrize("lock", [LOCK, Pulsar.LOCK, BOOKKEEPER_LOCK], ids=lambda lock: lock.stem)
def test_lock_files(lock: Path) -> None:
    coordinates = read_lock(lock)
    assert len(set(coordinates)) == len(coordinates)
    assert any(c.file_name == f"{lock.stem}.jar" for c in coordinates)


def test_a_line_that_is_no_coordinate() -> None:
    with pytest.raises(ValueError, match="not group:artifact"):
        Coordinate.parse("only:two")


def test_lock_lines_of_a_maven_listing() -> None:
    listing = """
The following files have been resolved:
   io.netty:netty-epoll:jar:linux-x86_64:4.1.127.Final:compile -- module x
   org.a:b:jar:1.0:runtime
   org.a:tests:jar:1.0:test
"""
    assert _lock_lines(listing) == [
        "io.netty:netty-epoll:4.1.127.Final:linux-x86_64",
        "org.a:b:1.0",
    ]


def test_classifiers_of_one_module_are_one_dependency() -> None:
    xml = _dependencies([Coordinate("g", "a", "1"), Coordinate("g", "a", "1", "linux")])
    assert xml.count("<dependency ") == 1
    assert xml.count("<artifact ") == 2


def test_jars_are_fetched_once_by_all_who_need_them_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("g:a:1\n")
    fetched = []

    def fetch(name: str, _: object, directory: Path, work: Path) -> None:
        fetched.append(name)
        threading.Event().wait(0.1)  # for the other, which does not come
        directory.mkdir()
        (directory / "a-1.jar").touch()

    monkeypatch.setattr(maven, "_fetch", fetch)
    with ThreadPoolExecutor(2) as threads:
        paths = list(threads.map(lambda _: maven.class_path(lock, tmp_path / "cache"), range(2)))
    assert paths == [str(tmp_path / "cache" / "some" / "a-1.jar")] * 2
    assert fetched == ["some"]


def test_jars_that_cannot_be_fetched_say_what_to_do_in_few_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nfor i in $(seq 1000); do echo no route to host; done\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setattr(maven, "java", lambda: str(java))
    with pytest.raises(ConfigError, match="could not fetch 68 of the 68 jars") as refused:
        maven.class_path(BOOKKEEPER_LOCK, tmp_path / "cache")
    lines = str(refused.value).splitlines()
    assert len(lines) == 4
    said = Path(lines[-1].partition(": ")[2])
    assert said.read_text().count("no route to host") == 1000
