"""What the commands that serve have in common: options, start and output.

Only modules that a serving process needs anyway are imported here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

from pulsark import __version__
from pulsark.cli.terminal.errors import CommandError
from pulsark.config.addresses import who_may_come_in
from pulsark.config.sources import load_settings
from pulsark.log_format import start_logging
from pulsark.private_files import create_privately
from pulsark.runtime import hand_over_promptly, raise_descriptor_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from pulsark.config.settings import Settings
    from pulsark.config.sources import LoadedSettings

Option = tuple[str, str, str, str]
"""An option that is a setting: its name, its key, its value's name, and what help says of it."""

Ready = asyncio.Future[dict[str, Any]]
"""Gets the addresses once the process serves."""

PORTS: tuple[Option, ...] = (
    ("--host", "bindAddress", "ADDRESS", "where to listen; 0.0.0.0 is every interface"),
    ("--broker-port", "brokerServicePort", "PORT", "port for clients; 0 is any"),
    ("--web-port", "webServicePort", "PORT", "port of HTTP; 0 is any"),
    ("--flight-port", "flightServicePort", "PORT", "port of Arrow Flight; 0 is any"),
)


def parser(command: str, told: str, options: Sequence[Option]) -> argparse.ArgumentParser:
    """What reads the options of a command that serves."""
    made = argparse.ArgumentParser(f"pulsark {command}", description=told, allow_abbrev=False)
    for option, key, metavar, meaning in options:
        made.add_argument(option, dest=key, metavar=metavar, help=meaning)
    told = "serve other machines without authentication: everyone who reaches --host may do all"
    made.add_argument("--insecure", action="store_true", help=told)
    told = "properties file, as Pulsar's broker.conf"
    made.add_argument("--conf", metavar="FILE", help=told)
    told = "any setting; see `pulsark config`"
    made.add_argument(
        "--set", metavar="KEY=VALUE", type=_pair, action="append", default=[], help=told
    )
    made.add_argument("--json", action="store_true", help="print JSON for programs")
    return made


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: write KEY=VALUE")
    return key.strip(), value


def flags_of(found: dict[str, Any]) -> dict[str, str]:
    """Settings among parsed options; everything else must have been taken out of ``found``."""
    flags: dict[str, str] = dict(found.pop("set"))
    if found.pop("insecure"):
        flags["insecure"] = "true"
    return flags | {key: value for key, value in found.items() if value is not None}


def loaded(conf: str | None, flags: Mapping[str, str | int | bool]) -> LoadedSettings:
    """The settings of a file, the environment and the command line."""
    return load_settings(file=conf, environment=os.environ, flags=flags)


def run(
    found: LoadedSettings,
    serve: Callable[[Settings, Ready], Coroutine[Any, Any, None]],
    announce: Callable[[dict[str, Any]], None],
    *,
    as_json: bool,
) -> None:
    """Print warnings, then serve until ``serve`` ends. ``announce`` prints the addresses."""
    settings = found.settings
    for warning in found.warnings:
        print(f"pulsark: warning: {warning}", file=sys.stderr)
    create_privately(settings.dataDirectoryAccess)
    start_logging(settings.logLevel, settings.logFormat)
    import uvloop

    raise_descriptor_limit()
    hand_over_promptly()
    try:
        uvloop.run(_serving(settings, serve, print_json_line if as_json else announce))
    except OSError as error:
        place = error.filename or settings.dataDir
        raise CommandError(f"{place}: {error.strerror or error}") from error


async def _serving(
    settings: Settings,
    serve: Callable[[Settings, Ready], Coroutine[Any, Any, None]],
    announce: Callable[[dict[str, Any]], None],
) -> None:
    ready: Ready = asyncio.get_running_loop().create_future()

    def told(done: Ready) -> None:
        if not done.cancelled():
            announce(done.result())

    ready.add_done_callback(told)
    try:
        await serve(settings, ready)
    finally:
        ready.cancel()


def print_json_line(info: dict[str, Any]) -> None:
    """The addresses, for programs."""
    import json

    print(json.dumps(info), flush=True)


def print_addresses(what: str, info: dict[str, Any]) -> None:
    """The addresses of one broker, or of all, for people."""
    print(f"{what} {__version__} is ready (process {info['pid']}); Ctrl-C stops it")
    for name, key in (
        ("clients", "brokerServiceUrl"),
        ("clients", "brokerServiceUrlTls"),
        ("admin", "webServiceUrl"),
        ("admin", "webServiceUrlTls"),
        ("flight", "flightUrl"),
        ("flight", "flightUrlTls"),
    ):
        if key in info:
            print(f"  {name:8} {info[key]}")
    for number, broker in enumerate(info.get("brokers", ())):
        own = [url for key, url in broker.items() if "Url" in key]
        print(f"  broker {number} {' '.join(own)} (process {broker['pid']})")


def print_access(settings: Settings) -> None:
    """Who may come in."""
    print(f"  access   {who_may_come_in(settings)}", flush=True)
