"""Runs the smoke programs of other languages and reads their verdicts."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.maven import CACHE
from tests.support.standalone import Standalone

SCENARIOS = (
    "batched_compressed",
    "keys_and_properties",
    "shared",
    "failover",
    "exclusive",
    "reader",
    "seek",
    "cumulative_ack",
    "negative_ack",
    "partitioned",
    "many_topics",
    "chunked",
    "schema",
)
"""What every client does; each program knows all of them."""

CLIENT_SIDE = (
    "ack_timeout",
    "ack_receipts",
    "retry_letter",
    "hashing",
    "readers_of_key_ranges",
    "transactions",
)
"""What the Java client does on its side and the Python client does not, or not quickly."""

SCHEMAS = ("schema_types", "schema_evolution")
"""Types of schemas and what follows from them that only the Java client has."""

PROGRAM_SECONDS = 120
GO_MODULE = Path(__file__).parents[1] / "clients" / "go"


def built_with_go(package: str, name: str) -> str:
    """A program of the module in ``tests/clients/go``; skips the test where there is no Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go command")
    program = CACHE / "go" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "build", "-o", str(program), package],
        cwd=GO_MODULE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(program)


def create_partitioned_topic(standalone: Standalone, name: str, partitions: int) -> str:
    """Create ``public/default/NAME`` over HTTP; its full name."""
    request = urllib.request.Request(
        f"{standalone.web_url}/admin/v2/persistent/public/default/{name}/partitions",
        method="PUT",
        data=json.dumps(partitions).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60):
        pass
    return f"persistent://public/default/{name}"


def verdicts(
    standalone: Standalone, language: str, command: Sequence[str], scenarios: Sequence[str]
) -> dict[str, str]:
    """What becomes of the scenarios of a program that knows no more than a broker's address."""
    partitioned = create_partitioned_topic(standalone, f"{language}-four", 4)
    prefix = f"persistent://public/default/{language}-"
    return run_program([*command, standalone.service_url, prefix, partitioned], scenarios)


def run_program(
    command: Sequence[str], scenarios: Sequence[str], seconds: float = PROGRAM_SECONDS
) -> dict[str, str]:
    """Run a program over the scenarios; "" or the reason of the failure for each."""
    done = subprocess.run(
        [*command, *scenarios], capture_output=True, text=True, timeout=seconds, check=False
    )
    rest = f"the program ended with {done.returncode}: {done.stderr[-3000:]}"
    found = dict.fromkeys(scenarios, rest)
    for line in done.stdout.splitlines():
        verdict, _, rest = line.partition(" ")
        name, _, reason = rest.partition(": ")
        if verdict in ("PASS", "FAIL") and name in found:
            found[name] = "" if verdict == "PASS" else f"{reason}\n{done.stderr[-3000:]}"
    return found
