"""Schema resolution beside the Avro library that decides in Pulsar's brokers.

It is in the Java client too. Its answers are Pulsark's, except where a union holds several types
that look right at their outside: it takes the first of them, Pulsark any that is right.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.load import LOCK, compile_java
from benchmarks.maven import CACHE, class_path, java
from pulsark.schemas.avro import parse_avro
from pulsark.schemas.avro_resolution import Effort, why_unreadable
from tests.support.avro_schemas import Author, is_complete

SOURCE = Path(__file__).parent / "java" / "AvroResolution.java"
PAIRS = 2000


def pairs(aliases: float) -> list[tuple[Any, Any]]:
    """Readers and writers; the reader is a later version."""
    found = []
    for seed in range(PAIRS):
        author = Author(Random(seed))
        writer = author.new()
        reader = author.next_version(writer, aliases=aliases)
        if is_complete(reader):
            found.append((reader, writer))
    return found


def ask_java(asked: list[tuple[Any, Any]]) -> list[bool]:
    path = compile_java(SOURCE, class_path(LOCK), CACHE / "classes" / "avro-resolution")
    lines = [f"{json.dumps(reader)}\t{json.dumps(writer)}\n" for reader, writer in asked]
    done = subprocess.run(
        [java(), "-Xmx256m", "-cp", path, "AvroResolution"],
        input="".join(lines),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return [line == "true" for line in done.stdout.split()]


def several_may_fit(definition: Any) -> bool:
    """Whether a union in it holds named types, of which a name chooses one."""
    if isinstance(definition, list):
        return any(isinstance(branch, dict) and "name" in branch for branch in definition) or any(
            map(several_may_fit, definition)
        )
    if not isinstance(definition, dict):
        return False
    inner = [field["type"] for field in definition.get("fields", ())]
    inner += [definition[key] for key in ("items", "values") if key in definition]
    return any(map(several_may_fit, inner))


@pytest.mark.parametrize("aliases", [0.0, 1.0])
def test_java_gives_the_same_answers(aliases: float) -> None:
    asked = pairs(aliases)
    answers = ask_java(asked)
    assert len(answers) == len(asked) > 0.9 * PAIRS
    assert 0.1 < answers.count(False) / len(answers) < 0.9
    for (reader, writer), java_reads in zip(asked, answers, strict=True):
        reason = why_unreadable(parse_avro(reader), parse_avro(writer), Effort())
        if several_may_fit(reader):
            assert reason is None or not java_reads, (reader, writer, reason)
        else:
            assert (reason is None) == java_reads, (reader, writer, reason)
