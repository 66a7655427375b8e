"""A key cleared the screen of an operator.

Did: published under a key with escape sequences, and ran ``pulsark consume``.
Saw: the terminal was cleared and a line of the client's choice stood there.
Expected: the key with its special characters escaped, on one line.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pulsar
import pytest

from tests.support.standalone import Standalone

NAME = "a\x1b[2J\x1b[31mb\u202ec"


def test_the_command_line_escapes_names(
    shared_standalone: Standalone, client: pulsar.Client, topic: str
) -> None:
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, NAME)
    client.create_producer(topic).send(b"x", partition_key=NAME)
    words = ["consume", topic, "-s", "s", "-n", "1", "--position", "earliest"]
    done = subprocess.run(
        [sys.executable, "-m", "pulsark", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PULSARK_SERVICE_URL": shared_standalone.service_url},
    )
    assert done.returncode == 0, done.stderr
    assert "\\u001b" in done.stdout
    assert all(line.replace("\t", "").isprintable() for line in done.stdout.splitlines())
