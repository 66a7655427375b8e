"""The job that lets go what retention lets go, against an admin API that only answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsark.datasource.options.errors import DataSourceError
from pulsark.jobs.apply_retention import JOB
from pulsark.jobs.job import AtBroker, Context
from pulsark.jobs.runner import run_program

COUNTS = {"ledgers": 1, "rows": 10, "deletedFiles": 2, "keptFiles": 3}


class FakeAdmin:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken = ""
        self.topics = self

    def names(self, namespace: str) -> list[str]:
        return [f"persistent://{namespace}/{name}" for name in ("a", "b")]

    def call(self, method: str, path: str, body: Any = None, *, what: str) -> Any:
        self.calls.append(f"{method} {path}")
        if self.broken and self.broken in path:
            raise DataSourceError(f"{what}: the broker answered 503: later")
        return COUNTS

    def close(self) -> None:
        self.calls.append("close")


class FakeContext(Context):
    def __init__(self) -> None:
        super().__init__(JOB.name)
        self.fake = FakeAdmin()

    def admin(self, wanted: AtBroker) -> Any:
        return self.fake


def test_each_topic_is_asked_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    context = FakeContext()
    words = ["--namespace", "public/default", "--topic", "a", "--topic", "c", "--dry-run"]
    assert run_program(JOB, words, context) == 0
    base = "POST /persistent/public/default"
    paths = [f"{base}/{name}/table/retention?dryRun=true" for name in "abc"]
    assert context.fake.calls == [*paths, "close"]
    found = json.loads(capsys.readouterr().out)
    assert (found["topics"], found["rows"], found["keptFiles"]) == (3, 30, 9)


def test_a_topic_that_fails_does_not_keep_the_others_from_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = FakeContext()
    context.fake.broken = "/a/"
    assert run_program(JOB, ["--namespace", "public/default"], context) == 1
    assert [call for call in context.fake.calls if "/b/" in call]
    assert "1 of 2 topics failed" in json.loads(capsys.readouterr().out)["error"]


def test_it_has_to_be_said_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(JOB, [], FakeContext()) == 2
    assert "--topic or --namespace" in capsys.readouterr().err
