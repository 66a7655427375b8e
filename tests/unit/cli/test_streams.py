"""What a command prints has no unprintable characters, and its arguments show no secrets."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, cast

import pytest

from pulsark.cli.terminal.output import print_json, print_table
from pulsark.cli.terminal.streams import EscapingStream, without_secrets

HOSTILE = "a\x1b[31mb\x9b2Jc\u202ed\u2028e\rf\x07"


def printed(show: Callable[[], None]) -> str:
    stream = io.StringIO()
    with redirect_stdout(cast("Any", EscapingStream(stream))):
        show()
    return stream.getvalue()


def test_whatever_is_printed_is_escaped() -> None:
    shown = printed(lambda: print("one", HOSTILE, sep="\t"))
    assert shown == "one\ta\\u001b[31mb\\u009b2Jc\\u202ed\\u2028e\\rf\\u0007\n"


def test_a_table_has_one_line_for_each_row() -> None:
    rows = [[f"{HOSTILE}\nforged"], ["[bold]x[/bold]"]]
    shown = printed(lambda: print_table([("NAME", False)], rows))
    lines = shown.splitlines()
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("forged") for line in lines)
    assert "[bold]x[/bold]" in shown


def test_json_stays_json() -> None:
    value = {"name": f"{HOSTILE}\n\U000e0041"}
    shown = printed(lambda: print_json(value))
    assert all(line.isprintable() for line in shown.splitlines())
    assert json.loads(shown) == value


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("tokenSecretKey=data:;base64,c2VjcmV0", "tokenSecretKey=*********************"),
        ("tokenSecretKey=c2VjcmV0", "tokenSecretKey=********"),
        ("--auth-params=token:abc", "--auth-params=*********"),
        ("token:abc.def", "token:*******"),
        ("http://user:secret@host/", "http://user:************"),
        ("--set=webServicePort=8080", "--set=webServicePort=8080"),
        ("persistent://public/default/t", "persistent://public/default/t"),
    ],
)
def test_secrets_become_stars(argument: str, shown: str) -> None:
    found = without_secrets(b"pulsark\0" + argument.encode() + b"\0")
    assert found == b"pulsark\0" + shown.encode() + b"\0"


def test_the_value_of_a_secret_option_becomes_stars() -> None:
    assert without_secrets(b"-sk\0abc\0-x\0") == b"-sk\0***\0-x\0"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process do it")
def test_ps_shows_no_secret() -> None:
    program = (
        "import sys; from pulsark.cli.terminal.streams import hide_secret_arguments;"
        "hide_secret_arguments(); print(open('/proc/self/cmdline').read(), sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "tokenSecretKey=data:,abcdef"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown, _, argv = done.stdout.rpartition("\0")
    assert "abcdef" not in shown
    assert "tokenSecretKey=************" in shown
    assert argv.strip() == "tokenSecretKey=data:,abcdef"
