"""Flags and job files: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from pulsark.jobs.catalog import NAMES, job
from pulsark.jobs.job import AtBroker, Help, UsageError
from pulsark.jobs.job_file import parse_job_file, read_job_file
from pulsark.jobs.parameters import parse, usage

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(AtBroker):
    topic: Annotated[str, Help("the topic")]
    count: Annotated[int, Help("how many")] = 3
    tags: Annotated[tuple[str, ...], Help("words")] = ()
    dry_run: Annotated[bool, Help("only count")] = False
    limit: Annotated[float | None, Help("at most")] = None


def test_flags() -> None:
    words = ["--topic", "a", "--count=7", "--tags", "x", "--tags=y=z", "--dry-run", "--limit", "1"]
    found = parse(Wanted, words)
    assert found == Wanted(topic="a", count=7, tags=("x", "y=z"), dry_run=True, limit=1.0)
    assert parse(Wanted, ["--topic", "a", "--no-dry-run"]) == Wanted(topic="a")
    assert parse(Wanted, ["--topic=--dry-run"]).topic == "--dry-run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--topic is missing: the topic"),
        (["--topc", "a"], r"--topc is unknown \(did you mean --topic\?\)"),
        (["--no-dry-rum"], r"--no-dry-rum is unknown \(did you mean --dry-run\?\)"),
        (["--zzzz", "a"], "--zzzz is unknown$"),
        (["topic"], "topic belongs to no flag"),
        (["--topic"], "--topic: expected one argument"),
        (["--topic", "--dry-run"], "--topic: expected one argument"),
        (["--topic", "a", "--topic", "b"], "--topic is there twice"),
        (["--topic", "a", "--count", "few"], "--count: few is not a whole number"),
        (["--topic", "a", "--limit", "few"], "--limit: few is not a number"),
        (
            ["--topic", "a", "--dry-run=perhaps"],
            "--dry-run/--.* explicit argument 'perhaps'",
        ),
    ],
)
def test_wrong_flags_are_named(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(Wanted, words)


def test_flags_come_before_the_file_and_the_file_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("topic: from-file\ncount: 5\nservice_url: pulsar://file:1\ndry-run: yes\n")
    environment = {"PULSARK_SERVICE_URL": "pulsar://env:1", "PULSARK_ADMIN_URL": "http://env:2"}
    found = parse(Wanted, ["--config", str(path), "--count", "9"], environment)
    assert (found.topic, found.count, found.dry_run) == ("from-file", 9, True)
    assert (found.service_url, found.admin_url) == ("pulsar://file:1", "http://env:2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topik: a", r"the key topik is unknown \(did you mean topic\?\)"),
        ("topic: a\ncount: x", "count: x is not a whole number"),
        ("topic: [a, b]", "topic is one value, not a list"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        parse(Wanted, ["--config", str(path)])


def test_a_job_file() -> None:
    text = """\
---
# Orders
topic: orders            # the old ones
where: "key = 'x'"
quoted: 'it''s # here'
escaped: "tab\\tend"
url: pulsar://host:6650
none: ~
empty:
list:
  - a
  - 'b c'
inline: [x, "y, z", 3]   # three
sign: a#b
number: 007
word: no
"""
    assert parse_job_file(text, "f") == {
        "topic": "orders",
        "where": "key = 'x'",
        "quoted": "it's # here",
        "escaped": "tab\tend",
        "url": "pulsar://host:6650",
        "none": None,
        "empty": None,
        "list": ["a", "b c"],
        "inline": ["x", "y, z", "3"],
        "sign": "a#b",
        "number": "007",
        "word": "no",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: d}", "f:2: write 'key: value', with nothing nested but lists"),
        ("a:\n  b: c", "f:2: write 'key: value'"),
        ("a: 1\nb: 'open", "f:2: not YAML: found unexpected end of stream"),
        ("a: 1\na: 2", "f:2: a is there twice"),
        ("- a", "f:1: write"),
        ("a: [1, 2", "f:1: not YAML"),
        ("a: [1, [2]]", "f:1: write"),
        ("a: b: c", "f:1: not YAML"),
        ("a: *anchor", "f:1: not YAML: found undefined alias"),
        ('a: "\\q"', "f:1: not YAML: found unknown escape character"),
        ("a: \x01", "f: not YAML"),
    ],
)
def test_what_is_no_job_file_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_job_file(text, "f")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_job_file(str(tmp_path / "none.yaml"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        read_job_file(str(tmp_path / "binary"))


def test_help_names_every_flag() -> None:
    text = usage("job", "Does it.", Wanted)
    for words in ("--topic STR", "required", "--dry-run", "default 3", "$PULSARK_SERVICE_URL"):
        assert words in text


def test_the_admin_api_is_where_the_broker_is() -> None:
    assert Wanted(topic="t", service_url="pulsar://h:1").admin == "http://h:8080"
    assert Wanted(topic="t", admin_url="https://h:2").admin == "https://h:2"
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        _ = Wanted(topic="t", admin_url="h:2").admin


@pytest.mark.parametrize("name", NAMES)
def test_each_job_has_an_entry_point_and_an_example(name: str) -> None:
    found = job(name)
    assert found.name == name
    assert (ROOT / "jobs" / f"{name}.py").is_file()
    assert f"## {name}" in (ROOT / "docs" / "jobs.md").read_text()
    parse(found.parameters, ["--config", str(ROOT / "conf" / "jobs" / f"{name}.yaml")])


def test_an_unknown_job_is_named() -> None:
    with pytest.raises(UsageError, match=r"no job topic-to-delt \(did you mean topic_to_delta\?\)"):
        job("topic-to-delt")
