"""The process of one of several brokers, which share bookies and metadata store."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

from pulsark.config.store_urls import store_url
from pulsark.errors import ConfigError
from pulsark.processes.joined_metadata import join_metadata, live_by
from pulsark.processes.run_directory import RunDirectory
from pulsark.processes.served_broker import ServedBroker, SharedPorts, Stored, within_fleet
from pulsark.storage.backup.data_dir import DataDir
from pulsark.storage.remote_bookie.link import unix_socket
from pulsark.storage.remote_bookie.messages import Hello
from pulsark.storage.remote_bookie.remote import RemoteBookie

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.errors import PulsarkError
    from pulsark.metadata.store import MetadataStore
    from pulsark.processes.duty import Duty
    from pulsark.runtime import Runtime


class BrokerProcess:
    """The parts of the process; they start and stop in order."""

    def __init__(
        self, duty: Duty, runtime: Runtime, failed: Callable[[PulsarkError], None]
    ) -> None:
        assert duty.broker is not None
        self._settings = duty.settings
        self._duty = duty.broker
        self._adopt = duty.adopt
        self._runtime = runtime
        self._failed = failed
        self._cleanup = contextlib.AsyncExitStack()

    async def start(self) -> dict[str, Any]:
        """Start, and return the broker's addresses."""
        runtime, cleanup, duty = self._runtime, self._cleanup, self._duty
        data = DataDir.of(self._settings)
        run = RunDirectory(data)
        cleanup.callback(run.close)
        run.live()
        sockets = {
            key: [socket.socket(fileno=descriptor) for descriptor in descriptors]
            for key, descriptors in duty.sockets.items()
        }
        metadata = await self._metadata(data.metadata_path)
        bookies = {
            bookie_id: await self._bookie(bookie_id, run, metadata)
            for bookie_id in duty.disks.bookies
        }
        shared = SharedPorts(sockets, duty.urls, run.address_of_broker, duty.in_place)
        settings = within_fleet(self._settings, len(bookies))
        problems = duty.disks.problems
        stored = Stored(metadata, bookies, duty.disks.roots, data=data, problems=problems)
        served = ServedBroker(settings, runtime, stored, cleanup, adopt=self._adopt, shared=shared)
        return (await served.start()).as_json()

    async def _metadata(self, path: str) -> MetadataStore:
        if not store_url(self._settings) and not os.path.exists(path):
            # The bookie process has made it, or refused to start.
            raise ConfigError(f"the metadata store {path} is missing: was it moved or deleted?")
        metadata = await join_metadata(self._settings, path, self._runtime, create=False)
        live_by(metadata, self._cleanup, self._failed)
        return metadata

    async def _bookie(
        self, bookie_id: str, run: RunDirectory, metadata: MetadataStore
    ) -> RemoteBookie:
        bookie = await RemoteBookie.connect(
            unix_socket(run.address_of_bookie(bookie_id)),
            Hello(bookie_id, storeId=metadata.identity),
        )
        self._cleanup.push_async_callback(bookie.close)
        bookie.follow(metadata)
        return bookie

    async def stop(self) -> None:
        """Stop everything in the reverse order; durable state is on disk afterwards."""
        await self._cleanup.aclose()
