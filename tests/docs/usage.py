"""Whether a command that a document names would be understood."""

from __future__ import annotations

import re
from typing import Any

import typer

from pulsark.cli.app import app
from pulsark.cli.broker import broker_parser, cluster_parser
from pulsark.cli.standalone import parser as standalone_parser

SERVING = {
    "standalone": standalone_parser,
    "broker": broker_parser,
    "cluster": cluster_parser,
}
"""Commands that read their options by themselves."""


def check_usage(span: str, arguments: list[str]) -> None:
    """Fail unless the subcommand and all its options are known."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        assert name in command.commands, span
        command = command.commands[name]
    if command.name in SERVING:
        known = set(re.findall(r"--[\w-]+", SERVING[command.name]().format_help()))
    else:
        known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in arguments if word.startswith("-")}
    assert used <= known | {"-h", "--help"}, span
