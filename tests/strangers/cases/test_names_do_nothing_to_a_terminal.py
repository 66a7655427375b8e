"""A subscription's name cleared the screen of an operator.

Did: subscribed under a name with escape sequences, and ran ``pulsark topics stats``.
Saw: the terminal was cleared and a line of the client's choice stood there.
Expected: the name with its special characters escaped, on one line.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pulsar

from tests.support.standalone import Standalone

NAME = "a\x1b[2J\x1b[31mb\u202ec"


def test_the_command_line_escapes_names(
    shared_standalone: Standalone, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, NAME)
    done = subprocess.run(
        [sys.executable, "-m", "pulsark", "topics", "stats", topic],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PULSARK_ADMIN_URL": shared_standalone.web_url},
    )
    assert done.returncode == 0, done.stderr
    assert "\\u001b" in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())
