"""``pulsark standalone``: settings from all sources, then the process until a signal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pulsark import __version__
from pulsark.cli.errors import CommandError
from pulsark.config_sources import for_standalone, load_settings
from pulsark.log_format import start_logging
from pulsark.runtime import hand_over_promptly

if TYPE_CHECKING:
    from pulsark.config import Settings


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
    from pulsark.dispatch.standalone import serve

    ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    ready.add_done_callback(lambda done: _announce(done, as_json=as_json))
    try:
        await serve(settings, ready, adopt=adopt)
    finally:
        ready.cancel()


def _announce(ready: asyncio.Future[dict[str, str]], *, as_json: bool) -> None:
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
        ("admin", "webServiceUrl"),
        ("flight", "flightUrl"),
    ):
        print(f"  {name:8} {info[key]}")
    sys.stdout.flush()
