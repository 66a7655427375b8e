"""The embedded bookies of one process, and what happens when one of them lost its disk.

Each place of the fleet has a record ``/bookies/<place>`` in the metadata store that names the
bookie and its instance. A bookie whose directories came back empty must not answer under its
old name: it would say "no such entry" for entries that it had acknowledged. So the place gets
a bookie with a new name, and the old one counts as lost.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pulsark.errors import ConfigError, PulsarkError
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import Disk, Runtime
from pulsark.storage.bookie_records import PLACES
from pulsark.storage.embedded_bookie import EmbeddedBookie
from pulsark.storage.journal_settings import JournalSettings

log = logging.getLogger(__name__)

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BookieHome:
    """Where a bookie of the fleet keeps its journal and its storage root."""

    journal_dir: str
    ledger_dir: str


async def open_fleet(
    homes: Sequence[BookieHome],
    settings: JournalSettings,
    metadata: MetadataStore,
    runtime: Runtime,
) -> dict[str, EmbeddedBookie]:
    """Open a bookie in each home, by bookie id.

    One that cannot be opened is left out, loudly, as long as another one is there; otherwise
    its ``ConfigError`` or ``StorageError`` is raised.
    """
    fleet: dict[str, EmbeddedBookie] = {}
    error: PulsarkError | None = None
    for place, home in enumerate(homes, 1):
        try:
            bookie = await _open(f"bookie-{place}", home, settings, metadata, runtime)
        except PulsarkError as e:
            log.error("bookie of place %d is left out: %s", place, e)
            error = e
        else:
            fleet[bookie.bookie_id] = bookie
    if not fleet and error is not None:
        raise error
    return fleet


async def _open(
    place: str,
    home: BookieHome,
    settings: JournalSettings,
    metadata: MetadataStore,
    runtime: Runtime,
) -> EmbeddedBookie:
    path = f"{PLACES}/{place}"
    found = await metadata.get(path)
    version = found.version if found else ABSENT
    record = json.loads(found.value) if found else {"bookieId": place, "instanceId": None}
    if record["instanceId"] is not None and _is_empty(runtime.disk, home):
        lost, record = (
            record["bookieId"],
            {"bookieId": f"{place}-{version + 2}", "instanceId": None},
        )
        log.error(
            "bookie %s lost its data: %s and %s are empty; %s takes its place",
            lost,
            home.journal_dir,
            home.ledger_dir,
            record["bookieId"],
        )
    if record["instanceId"] is None:
        # The name is settled first: a crash in between finds it again, and no second one.
        version = await _put(metadata, path, record, version)
    name = str(record["bookieId"])
    bookie = await EmbeddedBookie.open(name, home.journal_dir, home.ledger_dir, settings, runtime)
    instance = bookie.instance_id.hex()
    if record["instanceId"] is None:
        await _put(metadata, path, {**record, "instanceId": instance}, version)
    elif record["instanceId"] != instance:
        await bookie.close()
        raise ConfigError(
            f"{home.journal_dir} belongs to instance {instance} of {name}, but this cluster "
            f"knows instance {record['instanceId']}: mount the right directory"
        )
    return bookie


async def _put(
    metadata: MetadataStore, path: str, record: dict[str, str | None], version: int
) -> int:
    value = json.dumps({"version": FORMAT_VERSION, **record}).encode()
    return await metadata.put(path, value, version)


def _is_empty(disk: Disk, home: BookieHome) -> bool:
    return not disk.list(home.journal_dir) and not disk.list(home.ledger_dir)
