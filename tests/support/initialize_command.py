"""``pulsark initialize-cluster-metadata`` in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pulsark.cli import main

COMMAND = "initialize-cluster-metadata"
URLS = ("--web-service-url", "http://h:8080", "--broker-service-url", "pulsar://h:6650")

RunCommand = Callable[..., tuple[int, str]]
"""Takes options; returns the exit code, and what was printed: of a failure also on stderr."""


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Runs the command."""

    def run_one(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["pulsark", COMMAND, *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err if code else said.out

    return run_one
