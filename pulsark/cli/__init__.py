"""The command line: ``pulsark standalone``, ``produce``, ``consume``, ``topics`` and others.

Each command imports what it needs when it runs: `pulsark version` must be quick, and a
broker's process must not carry the 14 MiB of what parses and prints for people. So the plain
form of ``standalone`` is read here; whatever is not plain goes to the full command line.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_STANDALONE_OPTIONS = {
    "--data-dir": "dataDir",
    "--bookies": "bookies",
    "--host": "bindAddress",
    "--broker-port": "brokerServicePort",
    "--web-port": "webServicePort",
    "--flight-port": "flightServicePort",
}
_NUMBERS = frozenset({"--bookies", "--broker-port", "--web-port", "--flight-port"})


def main() -> None:
    """Run the command of ``sys.argv`` and exit: 0 done, 1 failed, 2 wrong usage."""
    from pulsark.cli.errors import ends_in_one_line

    with ends_in_one_line():
        plain = plain_standalone(sys.argv[1:])
        if plain is not None:
            from pulsark.cli.standalone import run_standalone

            conf, flags, as_json = plain
            run_standalone(conf, flags, as_json=as_json)
        else:
            from pulsark.cli.app import app

            app(prog_name="pulsark")


def plain_standalone(
    arguments: list[str],
) -> tuple[str | None, dict[str, str | int | bool], bool] | None:
    """File, flags and ``--json`` of a ``standalone`` command without anything unusual in it.

    ``None`` for all others: for them, and for mistakes, the full command line has the words.
    """
    if arguments[:1] != ["standalone"]:
        return None
    conf, flags, as_json = None, dict[str, str | int | bool](), False
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "--json":
            as_json = True
            continue
        option, equals, text = argument.partition("=")
        value = text if equals else next(rest, "")
        if not value or (value.startswith("-") and not equals):
            return None
        if option == "--conf":
            conf = value
        elif option == "--set" and "=" in value:
            key, _, setting = value.partition("=")
            flags[key.strip()] = setting
        elif option in _STANDALONE_OPTIONS and (option not in _NUMBERS or value.isdecimal()):
            flags[_STANDALONE_OPTIONS[option]] = value
        else:
            return None
    return conf, flags, as_json
