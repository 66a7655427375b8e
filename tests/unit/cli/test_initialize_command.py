"""Options of ``pulsark initialize-cluster-metadata`` that mean nothing."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.support.initialize_command import URLS, RunCommand, command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    return command(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--configuration-metadata-store", "oxia://h:1"), "only ZooKeeper"),
        (("--web-service-url-tls", "http://h:1"), "must begin with https://"),
        (("--cluster", "a/b"), "cluster"),
        (("-bn", "100000"), "bundles"),
        (("--metadata-store", "mysql:h"), "only ZooKeeper"),
        (("--metadata-store", "etcd:http://h:1"), "--bookkeeper-metadata-service-uri"),
        (("--metadata-store", "zk:a b"), "does not name ZooKeeper servers"),
        (
            (
                "--bookkeeper-metadata-service-uri",
                "zk://a",
                "--existing-bk-metadata-service-uri",
                "zk://b",
            ),
            "two places",
        ),
    ],
)
def test_wrong_options_are_named_before_anything_is_made(
    run: RunCommand, more: tuple[str, ...], words: str
) -> None:
    code, said = run("--cluster", "c", "--metadata-store", "zk:none.invalid:1", *URLS, *more)
    assert (code, words in said) == (1, True), said


@pytest.mark.parametrize(
    ("more", "place", "name"),
    [
        (
            ("--metadata-store", "zk:one.invalid:1,two.invalid/p"),
            "one.invalid:1,two.invalid:2181",
            "two.invalid",
        ),
        (
            ("--metadata-store", "zk:127.0.0.1:1", "-cms", "zk:three.invalid"),
            "three.invalid:2181",
            "three.invalid",
        ),
        (
            (
                "--metadata-store",
                "etcd:http://four.invalid",
                "-bn",
                "8",
                "--bookkeeper-metadata-service-uri",
                "zk://[::1]/l",
            ),
            "http://four.invalid:2379",
            "four.invalid",
        ),
    ],
)
def test_hosts_that_nobody_knows_are_named_and_not_waited_for(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], place: str, name: str
) -> None:
    def look(host: str, *arguments: Any, **more: Any) -> list[Any]:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look)
    code, said = run("--cluster", "c", *URLS, *more)
    assert code == 1
    assert f"asking the metadata store at {place}\n" in said
    assert f"{place} cannot be reached: no address of {name} is known (Name or service" in said
