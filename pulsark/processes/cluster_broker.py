"""``pulsark broker``: one broker of a cluster. It stores nothing on its own machine.

Metadata are in the store of ``metadataStoreUrl``, ledgers on the bookies of
``bookkeeperMetadataServiceUri``, tables below ``tableRoots``. A broker whose metadata session has
ended exits, because others may own its bundles now: whoever runs it (systemd, Kubernetes,
``pulsark cluster``) starts it again, with a new session.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsark import __version__
from pulsark.config.addresses import asks_for_login, check_access
from pulsark.config.store_urls import store_url
from pulsark.errors import ConfigError, MetadataError
from pulsark.metadata.initialisation import check_initialized
from pulsark.processes.access import warn_of_access
from pulsark.processes.bookkeeper_storage import open_bookkeeper
from pulsark.processes.joined_metadata import join_metadata, live_by
from pulsark.processes.known_hosts import check_hosts
from pulsark.processes.loop_watch import LoopWatch
from pulsark.processes.own_disks import open_roots
from pulsark.processes.served_broker import ServedBroker, Stored
from pulsark.processes.until_signal import FAILED_STOP_SECONDS, serve_until_signal
from pulsark.runtime import Runtime

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pulsark.config.settings import Settings
    from pulsark.errors import PulsarkError


class ClusterBroker:
    """The parts of the process; they start and stop in order."""

    def __init__(
        self, settings: Settings, runtime: Runtime, failed: Callable[[PulsarkError], None]
    ) -> None:
        """``failed`` is called when the broker cannot go on."""
        self._settings = settings
        self._runtime = runtime
        self._failed = failed
        self._cleanup = contextlib.AsyncExitStack()

    async def start(self) -> dict[str, Any]:
        """Start, and return the broker's addresses."""
        settings, runtime, cleanup = self._settings, self._runtime, self._cleanup
        _check(settings)
        check_access(settings.bindAddress, insecure=settings.insecure or asks_for_login(settings))
        warn_of_access(settings)
        try:
            metadata = await join_metadata(settings, "", runtime, create=False)
        except MetadataError:
            await check_hosts(settings, lambda place: None)  # which says more, if that is why
            raise
        live_by(metadata, cleanup, self._failed)
        watch = LoopWatch(metadata.session.timeout_seconds)
        watch.start()
        cleanup.callback(watch.close)
        await check_initialized(metadata, settings.clusterName, settings.metadataStoreUrl)
        ledgers = await open_bookkeeper(settings, metadata, runtime, cleanup)
        roots = await open_roots(settings, settings.tableRoots, metadata, runtime)
        stored = Stored(metadata, ledgers.bookies, roots, ledgers.ledgers, fleet=ledgers.bookies)
        served = ServedBroker(settings, runtime, stored, cleanup, of_cluster=True)
        return {
            "pid": str(os.getpid()),
            **(await served.start()).as_json(),
            "version": __version__,
        }

    async def stop(self) -> None:
        """Stop everything in the reverse order."""
        await self._cleanup.aclose()


async def serve_broker(settings: Settings, ready: asyncio.Future[dict[str, Any]]) -> None:
    """Run a broker until SIGINT or SIGTERM. ``MetadataError`` if its session ended."""
    make = partial(ClusterBroker, settings, Runtime())
    await serve_until_signal(
        make,
        ready,
        stop_seconds=settings.brokerShutdownTimeoutMs / 1000,
        failed_stop_seconds=FAILED_STOP_SECONDS,
    )


def _check(settings: Settings) -> None:
    shared = {"metadataStoreUrl": store_url(settings), "tableRoots": settings.tableRoots}
    for key, example in (
        ("metadataStoreUrl", "zk:host:2181/pulsark"),
        ("tableRoots", "a directory that all brokers share, or s3://BUCKET/PREFIX"),
    ):
        if not shared[key]:
            raise ConfigError(
                f"{key} is not set to what machines share: a broker of a cluster needs that "
                f"({example}). On one machine, `pulsark standalone` needs nothing"
            )
