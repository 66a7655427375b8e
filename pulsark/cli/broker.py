"""``pulsark broker`` and ``pulsark cluster``: brokers of a cluster."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsark.cli import serving
from pulsark.config.sources import for_standalone
from pulsark.config.store_urls import STORES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pulsark.config.settings import Settings
    from pulsark.config.sources import LoadedSettings

BROKER_OPTIONS: tuple[serving.Option, ...] = (
    ("--metadata-store", "metadataStoreUrl", "URL", "such as zk:host:2181/pulsark"),
    *serving.PORTS,
)

CLUSTER_OPTIONS: tuple[serving.Option, ...] = (
    ("--data-dir", "dataDir", "DIR", "where everything is stored"),
    ("--bookies", "bookies", "N", "bookies of Apache BookKeeper (3)"),
    ("--brokers", "standaloneBrokers", "N", "brokers (2)"),
    *serving.PORTS,
)

CLUSTER_DEFAULTS = {"standaloneBrokers": 2, "bookies": 3}


def broker_parser() -> argparse.ArgumentParser:
    """What reads the options of ``pulsark broker``."""
    told = "Run a broker of a cluster, until Ctrl-C; see docs/cluster.md."
    return serving.parser("broker", told, BROKER_OPTIONS)


def cluster_parser() -> argparse.ArgumentParser:
    """What reads the options of ``pulsark cluster``."""
    told = "Try a cluster on one machine: ZooKeeper, bookies and brokers, until Ctrl-C."
    made = serving.parser("cluster", told, CLUSTER_OPTIONS)
    told = "where the jars of Apache BookKeeper are kept (~/.cache/pulsark)"
    made.add_argument("--jars", metavar="DIR", help=told)
    return made


def broker(words: Sequence[str]) -> None:
    """Serve with the options of a command line; wrong ones end the process with exit code 2."""
    found = vars(broker_parser().parse_args(words))
    conf, as_json = found.pop("conf"), found.pop("json")
    settings = serving.loaded(conf, serving.flags_of(found))

    def announce(info: dict[str, Any]) -> None:
        serving.print_addresses("A broker of Pulsark", info)
        serving.print_access(settings.settings)

    serving.run(settings, _serve_broker, announce, as_json=as_json)


def cluster(words: Sequence[str]) -> None:
    """Serve with the options of a command line; wrong ones end the process with exit code 2."""
    found = vars(cluster_parser().parse_args(words))
    conf, as_json, jars = found.pop("conf"), found.pop("json"), found.pop("jars")
    settings = _with_defaults(serving.loaded(conf, serving.flags_of(found)))

    def announce(info: dict[str, Any]) -> None:
        serving.print_addresses("A cluster of Pulsark", info)
        print(f"  metadata {info['metadataStoreUrl']}")
        print(f"  bookies  {info['bookkeeperMetadataServiceUri']}")
        serving.print_access(settings.settings)

    kept = Path(jars) if jars else _cache()
    serving.run(settings, partial(_serve_cluster, kept), announce, as_json=as_json)


def _cache() -> Path:
    """Where programs keep what they can fetch again (XDG)."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pulsark"


def _with_defaults(found: LoadedSettings) -> LoadedSettings:
    changes = {key: n for key, n in CLUSTER_DEFAULTS.items() if key not in found.sources}
    settings = replace(found.settings, **changes)  # type: ignore[arg-type]
    unused = tuple(
        f"{key}: `pulsark cluster` has servers of its own, this has no effect "
        f"({found.sources[key]})"
        for key in STORES
        if key in found.sources
    )
    return for_standalone(replace(found, settings=settings, warnings=found.warnings + unused))


async def _serve_broker(settings: Settings, ready: serving.Ready) -> None:
    from pulsark.processes.cluster_broker import serve_broker

    await serve_broker(settings, ready)


async def _serve_cluster(jars: Path, settings: Settings, ready: serving.Ready) -> None:
    from pulsark.processes.local_cluster import serve_cluster

    await serve_cluster(settings, jars, ready, lambda text: print(f"  {text}", file=sys.stderr))
