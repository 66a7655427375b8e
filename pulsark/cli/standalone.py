"""``pulsark standalone``: settings from all sources, then the process until a signal."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pulsark import __version__
from pulsark.cli.terminal.errors import CommandError
from pulsark.config.addresses import who_may_come_in
from pulsark.config.sources import for_standalone, load_settings
from pulsark.log_format import start_logging
from pulsark.runtime import hand_over_promptly

if TYPE_CHECKING:
    from pulsark.config.settings import Settings


OPTIONS = (
    ("--data-dir", "dataDir", "DIR", "where everything is stored"),
    ("--bookies", "bookies", "N", "copies are kept on this many bookies"),
    (
        "--brokers",
        "standaloneBrokers",
        "N",
        "brokers, each a process of its own; see docs/scaling.md",
    ),
    ("--host", "bindAddress", "ADDRESS", "where to listen; 0.0.0.0 is every interface"),
    ("--broker-port", "brokerServicePort", "PORT", "port for clients; 0 is any"),
    ("--web-port", "webServicePort", "PORT", "port of HTTP; 0 is any"),
    ("--flight-port", "flightServicePort", "PORT", "port of Arrow Flight; 0 is any"),
)
"""Options that are settings: each with its key, and what help says of it."""


def standalone(words: Sequence[str]) -> None:
    """Serve with the options of a command line; wrong ones end the process with exit code 2."""
    found = vars(parser().parse_args(words))
    conf, as_json, adopt = found.pop("conf"), found.pop("json"), found.pop("adopt")
    flags: dict[str, str] = dict(found.pop("set"))
    if found.pop("insecure"):
        flags["insecure"] = "true"
    flags |= {key: value for key, value in found.items() if value is not None}
    run_standalone(conf, flags, as_json=as_json, adopt=adopt)


def parser() -> argparse.ArgumentParser:
    """What reads the options of ``pulsark standalone``."""
    made = argparse.ArgumentParser(
        "pulsark standalone",
        description="Run a broker with its storage in one process, until Ctrl-C.",
        allow_abbrev=False,
    )
    for option, key, metavar, told in OPTIONS:
        made.add_argument(option, dest=key, metavar=metavar, help=told)
    told = "serve other machines without authentication: everyone who reaches --host may do all"
    made.add_argument("--insecure", action="store_true", help=told)
    told = "properties file, as Pulsar's broker.conf"
    made.add_argument("--conf", metavar="FILE", help=told)
    told = "any setting; see `pulsark config`"
    made.add_argument(
        "--set", metavar="KEY=VALUE", type=_pair, action="append", default=[], help=told
    )
    told = "serve although the metadata store is older than the bookies, or another one; see "
    made.add_argument("--adopt", action="store_true", help=f"{told}docs/operations.md")
    made.add_argument("--json", action="store_true", help="print JSON for programs")
    return made


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: write KEY=VALUE")
    return key.strip(), value


def run_standalone(
    conf: str | None,
    flags: Mapping[str, str | int | bool],
    *,
    as_json: bool,
    adopt: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; what was acknowledged is on disk at any time."""
    loaded = for_standalone(load_settings(file=conf, environment=os.environ, flags=flags))
    for warning in loaded.warnings:
        print(f"pulsark: warning: {warning}", file=sys.stderr)
    start_logging(loaded.settings.logLevel, loaded.settings.logFormat)
    import uvloop

    hand_over_promptly()
    try:
        uvloop.run(_serve(loaded.settings, as_json=as_json, adopt=adopt))
    except OSError as error:
        place = error.filename or loaded.settings.dataDir
        raise CommandError(f"{place}: {error.strerror or error}") from error


async def _serve(settings: Settings, *, as_json: bool, adopt: bool) -> None:
    ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    access = who_may_come_in(settings)
    ready.add_done_callback(lambda done: _announce(done, access, as_json=as_json))
    try:
        if settings.standaloneBrokers > 1:
            await _supervise(settings, ready, adopt=adopt)
            return
        from pulsark.standalone import serve

        await serve(settings, ready, adopt=adopt)
    finally:
        ready.cancel()


async def _supervise(
    settings: Settings, ready: asyncio.Future[dict[str, Any]], *, adopt: bool
) -> None:
    if adopt:
        raise CommandError("--adopt is for one broker: start once with --brokers 1 --adopt")
    from pulsark.processes.supervisor import supervise

    await supervise(settings, ready)


def _announce(ready: asyncio.Future[dict[str, Any]], access: str, *, as_json: bool) -> None:
    if ready.cancelled():
        return
    info = ready.result()
    if as_json:
        import json

        print(json.dumps(info), flush=True)
        return
    print(f"Pulsark {__version__} is ready (process {info['pid']}); Ctrl-C stops it")
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
        own = [url for key, url in broker.items() if key != "pid"]
        print(f"  broker {number} {' '.join(own)} (process {broker['pid']})")
    print(f"  access   {access}")
    sys.stdout.flush()
