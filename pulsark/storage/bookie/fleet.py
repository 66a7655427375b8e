"""The embedded bookies of one process, and what happens when one of them lost its disk.

Each place of the fleet has a record ``/bookies/<place>`` in the metadata store that names the
bookie and its instance. A bookie whose directories came back empty must not answer under its
old name: it would say "no such entry" for entries that it had acknowledged. So the place gets
a bookie with a new name, and the old one counts as lost.

Whether bookies and metadata store belong together at all is asked first (``bookie_claims``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError, PulsarkError, StorageError
from pulsark.file_locks import LOCK_NAME
from pulsark.limits import ADOPTED_LEDGER_IDS_LEFT_OUT
from pulsark.metadata.paths import BOOKIES, LEDGER_ID_COUNTER, bookie_path
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.storage.bookie.claims import WAYS_OUT, OtherStoreError, Seen, foreign, older
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.identity import load_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pulsark.runtime import Disk, Runtime
    from pulsark.storage.bookie.journal_settings import JournalSettings

log = logging.getLogger(__name__)

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BookieHome:
    """Where a bookie of the fleet keeps its journal and its storage root."""

    journal_dir: str
    ledger_dir: str


def check_store_is_there(path: str, homes: Iterable[BookieHome], disk: Disk) -> None:
    """``OtherStoreError`` if bookies are in service and there is no file of a metadata store.

    Asked before a store is opened: opening would make a new one, which lies in the way of the
    right one.
    """
    found = None if os.path.exists(path) else bookie_in_service(homes, disk)
    if found is not None:
        bookie_id, directory = found
        raise OtherStoreError(
            f"{path} is not there, and bookie {bookie_id} in {directory} is in service. {WAYS_OUT}"
        )


def bookie_in_service(homes: Iterable[BookieHome], disk: Disk) -> tuple[str, str] | None:
    """A bookie that belongs to a metadata store, and its directory."""
    for home in homes:
        try:
            identity = load_identity(disk, home.ledger_dir)
        except (ConfigError, OSError):
            continue  # it is said when the bookie is opened
        if identity is not None:
            return identity.bookie_id, home.ledger_dir
    return None


async def open_fleet(
    homes: Sequence[BookieHome],
    settings: JournalSettings,
    metadata: MetadataStore,
    runtime: Runtime,
    *,
    adopt: bool = False,
    problems: list[str] | None = None,
) -> dict[str, EmbeddedBookie]:
    """Open a bookie in each home, by bookie id.

    ``problems`` gets one sentence for each bookie that is missing, or has lost something.

    One that cannot be opened is left out, loudly, as long as another one is there; otherwise
    its ``ConfigError`` or ``StorageError`` is raised. ``OtherStoreError`` if they are not the
    bookies of this metadata store, or have seen a later state of it; with ``adopt`` they become
    its bookies.
    """
    places = {f"bookie-{number}": home for number, home in enumerate(homes, 1)}
    # All are looked at before one is opened: with the wrong store, nothing is to be changed.
    for place, home in places.items():
        await _check_claim(place, home, metadata, runtime, adopt=adopt)
    problems = [] if problems is None else problems
    fleet = await _open_all(places, settings, metadata, runtime, problems, adopt=adopt)
    for place in set(await metadata.children(BOOKIES)) - places.keys():
        problems.append(
            f"{place} is known, and not among the {len(places)} bookies of the settings: what only "
            "it has cannot be read; start with as many as before (--bookies)"
        )
        log.error("%s", problems[-1])
    for bookie in fleet.values():
        report = bookie.recovery
        if report.damaged or report.corrupt_entries:  # opening it has logged that
            problems.append(
                f"the journal of bookie {bookie.bookie_id} has lost something: {report}; "
                "pulsark doctor --data-dir DIR says what to do"
            )
        metadata.on_commit(bookie.note_mark)
        bookie.note_mark(metadata.mark)
    return fleet


async def _open_all(
    places: Mapping[str, BookieHome],
    settings: JournalSettings,
    metadata: MetadataStore,
    runtime: Runtime,
    problems: list[str],
    *,
    adopt: bool,
) -> dict[str, EmbeddedBookie]:
    fleet: dict[str, EmbeddedBookie] = {}
    error: PulsarkError | None = None
    recovered = await _recovered(places, settings, metadata, runtime, adopt=adopt)
    try:
        for place, home in places.items():
            try:
                found = recovered.pop(place, None)
                if isinstance(found, PulsarkError):
                    raise found
                if found is None:
                    found = await _open(place, home, settings, metadata, runtime, problems)
                else:
                    await found.begin()
                    await _note_instance(place, found, metadata)
            except PulsarkError as e:
                problems.append(f"{place} is skipped: {e}")
                log.error("%s", problems[-1])
                error = e
            else:
                fleet[found.bookie_id] = found
        if not fleet and error is not None:
            raise error
        await _check_age(fleet.values(), metadata, adopt=adopt)
    except BaseException:
        for rest in recovered.values():
            if isinstance(rest, EmbeddedBookie):
                rest.leave()
        for bookie in fleet.values():
            await bookie.close()
        raise
    return fleet


def leave_when_failed(
    fleet: dict[str, EmbeddedBookie], needed: int, too_few: Callable[[StorageError], None]
) -> None:
    """A bookie whose disk fails leaves the fleet; its ledgers go on with the others.

    It is not closed. ``too_few`` is called when fewer than ``needed`` are left, so that no ledger
    can be written any more: only a restart finds out what is on the disks.
    """

    def left(bookie_id: str, error: StorageError) -> None:
        fleet.pop(bookie_id, None)
        log.error(
            "bookie %s has left the fleet, %d of at least %d are there; see to its disk and "
            "restart this process",
            bookie_id,
            len(fleet),
            needed,
        )
        if len(fleet) < needed:
            too_few(StorageError(f"bookie {bookie_id}: {error}"))

    for bookie_id, bookie in fleet.items():
        bookie.when_failed(partial(left, bookie_id))


async def _check_claim(
    place: str, home: BookieHome, metadata: MetadataStore, runtime: Runtime, *, adopt: bool
) -> None:
    try:
        identity = load_identity(runtime.disk, home.ledger_dir)
    except (ConfigError, OSError):
        return  # it is said when the bookie is opened
    path = bookie_path(place)
    found = await metadata.get(path)
    record = json.loads(found.value) if found is not None else None
    reason = foreign(place, record, identity, metadata.identity)
    if reason is None or identity is None:
        return
    if not adopt:
        raise OtherStoreError(f"{reason}. {WAYS_OUT}")
    log.error("%s is adopted although %s", place, reason)
    adopted = {"bookieId": identity.bookie_id, "instanceId": identity.instance_id.hex()}
    await _put(metadata, path, adopted, found.version if found is not None else ABSENT)


async def _check_age(
    bookies: Iterable[EmbeddedBookie], metadata: MetadataStore, *, adopt: bool
) -> None:
    seen = [Seen(b.bookie_id, b.mark, b.max_ledger_id) for b in bookies]
    unknown = [bookie for bookie in seen if not metadata.knows(bookie.mark)]
    counter = await metadata.get(LEDGER_ID_COUNTER)
    next_ledger_id = 0 if counter is None else int(counter.value)
    reason = older(seen, unknown, next_ledger_id)
    if reason is not None and not adopt:
        raise OtherStoreError(f"{reason}. {WAYS_OUT}")
    if adopt:
        if reason is not None:
            log.error("bookies are adopted although %s", reason)
        await leave_out_ledger_ids(metadata, max(bookie.max_ledger_id for bookie in seen))
        await metadata.adopt(bookie.mark for bookie in seen)


async def _recovered(
    places: Mapping[str, BookieHome],
    settings: JournalSettings,
    metadata: MetadataStore,
    runtime: Runtime,
    *,
    adopt: bool,
) -> dict[str, EmbeddedBookie | PulsarkError]:
    """The bookies that are in service as the store knows them, or why one cannot be opened.

    Their age is looked at before anything is written to their journals.
    """
    found: dict[str, EmbeddedBookie | PulsarkError] = {}
    bookies: list[EmbeddedBookie] = []
    try:
        for place, home in places.items():
            try:
                _check_access(home, runtime.disk)
                known = await metadata.get(bookie_path(place))
                if known is None or _is_empty(runtime.disk, home):
                    continue
                record = json.loads(known.value)
                name = str(record["bookieId"])
                _check_instance(name, home, record["instanceId"], runtime.disk)
                bookie = await EmbeddedBookie.recovered(
                    name, home.journal_dir, home.ledger_dir, settings, runtime, metadata.identity
                )
            except PulsarkError as e:
                found[place] = e
            else:
                bookies.append(bookie)
                found[place] = bookie
        if not adopt:
            await _check_age(bookies, metadata, adopt=False)
    except BaseException:
        for bookie in bookies:
            bookie.leave()
        raise
    return found


async def _note_instance(place: str, bookie: EmbeddedBookie, metadata: MetadataStore) -> None:
    """Make up for a note that a crash came before."""
    path = bookie_path(place)
    found = await metadata.get(path)
    assert found is not None
    record = json.loads(found.value)
    if record["instanceId"] is None:
        await _put(
            metadata, path, {**record, "instanceId": bookie.instance_id.hex()}, found.version
        )


async def leave_out_ledger_ids(metadata: MetadataStore, seen: int) -> None:
    """Let the next ledger have an id well above one that was seen, and above the next one."""
    counter = await metadata.get(LEDGER_ID_COUNTER)
    next_ledger_id = max(0 if counter is None else int(counter.value), seen + 1)
    next_ledger_id += ADOPTED_LEDGER_IDS_LEFT_OUT
    await metadata.put(LEDGER_ID_COUNTER, b"%d" % next_ledger_id)
    log.info("the next ledger is %d", next_ledger_id)


async def _open(
    place: str,
    home: BookieHome,
    settings: JournalSettings,
    metadata: MetadataStore,
    runtime: Runtime,
    problems: list[str],
) -> EmbeddedBookie:
    _check_access(home, runtime.disk)
    path = bookie_path(place)
    found = await metadata.get(path)
    version = found.version if found else ABSENT
    record = json.loads(found.value) if found else {"bookieId": place, "instanceId": None}
    if record["instanceId"] is not None and _is_empty(runtime.disk, home):
        lost, record = (
            record["bookieId"],
            {"bookieId": f"{place}-{version + 2}", "instanceId": None},
        )
        problems.append(
            f"bookie {lost} lost its data: {home.journal_dir} and {home.ledger_dir} are empty; "
            f"{record['bookieId']} takes its place"
        )
        log.error("%s", problems[-1])
    if record["instanceId"] is None:
        # The name is settled first: a crash in between finds it again, and no second one.
        version = await _put(metadata, path, record, version)
    name, instance = str(record["bookieId"]), record["instanceId"]
    _check_instance(name, home, instance, runtime.disk)
    bookie = await EmbeddedBookie.open(
        name, home.journal_dir, home.ledger_dir, settings, runtime, metadata.identity
    )
    if instance is None:
        await _put(metadata, path, {**record, "instanceId": bookie.instance_id.hex()}, version)
    return bookie


def _check_access(home: BookieHome, disk: Disk) -> None:
    """Raise ``StorageError`` if what is in the directories cannot be known now.

    Those of a disk that is away are not there, or cannot be read. That is not an empty disk: as
    soon as it is back, the bookie answers for all that it has.
    """
    try:
        for directory in (home.journal_dir, home.ledger_dir):
            disk.make_dirs(directory)
            with contextlib.suppress(ConfigError):  # it is said when the bookie is opened
                load_identity(disk, directory)
    except OSError as e:
        raise StorageError(f"{home.journal_dir}, {home.ledger_dir}: {e}") from e


def _check_instance(name: str, home: BookieHome, instance: str | None, disk: Disk) -> None:
    """Raise ``ConfigError`` if directories are those of another instance than is known."""
    found = load_identity(disk, home.journal_dir)
    if instance is not None and found is not None and found.instance_id.hex() != instance:
        raise ConfigError(
            f"{home.journal_dir} belongs to instance {found.instance_id.hex()} of "
            f"{found.bookie_id}, but this cluster knows instance {instance} of {name}: mount the "
            "right directory"
        )


async def _put(
    metadata: MetadataStore, path: str, record: Mapping[str, str | None], version: int
) -> int:
    value = json.dumps({"version": FORMAT_VERSION, **record}).encode()
    return await metadata.put(path, value, version)


def _is_empty(disk: Disk, home: BookieHome) -> bool:
    names = {*disk.list(home.journal_dir), *disk.list(home.ledger_dir)}
    return names <= {LOCK_NAME}
