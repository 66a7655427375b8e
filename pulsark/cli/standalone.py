"""``pulsark standalone``: settings from all sources, then the process until a signal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pulsark.cli import serving
from pulsark.config.sources import for_standalone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pulsark.config.settings import Settings

OPTIONS: tuple[serving.Option, ...] = (
    ("--data-dir", "dataDir", "DIR", "where everything is stored"),
    ("--bookies", "bookies", "N", "copies are kept on this many bookies"),
    (
        "--brokers",
        "standaloneBrokers",
        "N",
        "brokers, each a process of its own; see docs/scaling.md",
    ),
    *serving.PORTS,
)
"""Options that are settings."""


def standalone(words: Sequence[str]) -> None:
    """Serve with the options of a command line; wrong ones end the process with exit code 2."""
    found = vars(parser().parse_args(words))
    conf, as_json, adopt = found.pop("conf"), found.pop("json"), found.pop("adopt")
    run_standalone(conf, serving.flags_of(found), as_json=as_json, adopt=adopt)


def parser() -> argparse.ArgumentParser:
    """What reads the options of ``pulsark standalone``."""
    told = "Run a broker with its storage in one process, until Ctrl-C."
    made = serving.parser("standalone", told, OPTIONS)
    told = "serve although the metadata store is older than the bookies, or another one; see "
    made.add_argument("--adopt", action="store_true", help=f"{told}docs/operations.md")
    return made


def run_standalone(
    conf: str | None,
    flags: Mapping[str, str | int | bool],
    *,
    as_json: bool,
    adopt: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; what was acknowledged is on disk at any time."""
    found = for_standalone(serving.loaded(conf, flags))

    def announce(info: dict[str, Any]) -> None:
        serving.print_addresses("Pulsark", info)
        serving.print_access(found.settings)

    serving.run(found, partial(_serve, adopt=adopt), announce, as_json=as_json)


async def _serve(settings: Settings, ready: serving.Ready, *, adopt: bool) -> None:
    if settings.standaloneBrokers > 1:
        from pulsark.processes.supervisor import supervise

        await supervise(settings, ready, adopt=adopt)
    else:
        from pulsark.standalone import serve

        await serve(settings, ready, adopt=adopt)
