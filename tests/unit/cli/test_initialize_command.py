"""Options of ``pulsark initialize-cluster-metadata`` that mean nothing."""

from __future__ import annotations

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
