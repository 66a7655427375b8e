"""Options of ``pulsark initialize-cluster-metadata`` that mean nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pulsark.cli import main

COMMAND = "initialize-cluster-metadata"
URLS = ("--web-service-url", "http://h:8080", "--broker-service-url", "pulsar://h:6650")


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    def run_one(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["pulsark", COMMAND, *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run_one


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--configuration-metadata-store", "oxia://h:1"), "only ZooKeeper"),
        (("--web-service-url-tls", "http://h:1"), "must begin with https://"),
        (("--cluster", "a/b"), "cluster"),
        (("-bn", "100000"), "bundles"),
        (("--metadata-store", "mysql:h"), "only ZooKeeper"),
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
    run: Callable[..., tuple[int, str]], more: tuple[str, ...], words: str
) -> None:
    code, said = run("--cluster", "c", "--metadata-store", "zk:none.invalid:1", *URLS, *more)
    assert (code, words in said) == (1, True), said
