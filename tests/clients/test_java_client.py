"""The official Java client, in two versions, against a real standalone."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import LOCK, compile_java
from benchmarks.maven import CACHE, class_path, java
from tests.support.client_programs import CLIENT_SIDE, SCENARIOS, SCHEMAS, verdicts
from tests.support.standalone import Standalone

FOLDER = Path(__file__).parent / "java"
LOCKS = {"java-4.0": LOCK, "java-4.2": FOLDER / "pulsar-client-4.2.4.lock"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.client(name)) for name in LOCKS],
)
def results(request: pytest.FixtureRequest, shared_standalone: Standalone) -> dict[str, str]:
    version: str = request.param
    classes = CACHE / "classes" / f"smoke-{version}"
    path = compile_java(FOLDER / "Smoke.java", class_path(LOCKS[version]), classes)
    program = [java(), "-Xmx512m", "-cp", path, "Smoke"]
    # A short prefix of topics, since a pattern to watch has 50 characters at most.
    prefix = version.replace("-", "").replace(".", "")
    return verdicts(shared_standalone, prefix, program, SCENARIOS + CLIENT_SIDE + SCHEMAS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java(results: dict[str, str], scenario: str) -> None:
    assert results[scenario] == ""


@pytest.mark.feature("F91")
def test_java_types_of_schemas(results: dict[str, str]) -> None:
    assert results["schema_types"] == ""


@pytest.mark.command("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE")
def test_java_schema_evolution(results: dict[str, str]) -> None:
    assert results["schema_evolution"] == ""


@pytest.mark.feature("F21")
def test_java_acknowledgement_timeout(results: dict[str, str]) -> None:
    assert results["ack_timeout"] == ""


@pytest.mark.feature("F12", "F16", "F18")
@pytest.mark.command("ACK", "ACK_RESPONSE")
def test_java_acknowledgements_with_receipts(results: dict[str, str]) -> None:
    assert results["ack_receipts"] == ""


def test_java_readers_divide_the_keys_of_a_topic(results: dict[str, str]) -> None:
    assert results["readers_of_key_ranges"] == ""


@pytest.mark.feature("F23")
def test_java_retry_letter_topic(results: dict[str, str]) -> None:
    assert results["retry_letter"] == ""


@pytest.mark.feature("F43")
def test_java_hashing_schemes(results: dict[str, str]) -> None:
    assert results["hashing"] == ""


def test_java_is_told_that_there_are_no_transactions(results: dict[str, str]) -> None:
    assert results["transactions"] == ""
