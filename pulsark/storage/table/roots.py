"""Who a storage root is: a root that comes back empty must not pass for one that has its files.

A root has a random id, in a file on it and in the metadata store. Where both do not agree the root
is refused: nothing is written to it, and it counts for no copy, until a job has filled it again
and it gets its file back. Reads fall back to other roots by themselves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from pulsark.errors import MetadataError, StorageError
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import Disk, Runtime
from pulsark.storage.ledger_metadata import check_version

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
MARKER: Final = "STORAGE_ROOT"
"""The file on a root that has its id."""

Ids = Mapping[str, str]
"""By storage root: the id that it must have."""


class RefusedRootError(StorageError):
    """A storage root is not the one that is known under its path."""


def storage_root_of(directory: str) -> str:
    """The storage root of a table's directory (``record.table_directory``)."""
    return directory.rsplit("/", 3)[0]


async def commission(
    roots: Sequence[str], metadata: MetadataStore, runtime: Runtime
) -> dict[str, str]:
    """The ids of storage roots; one that was never known gets one, and its file.

    A root that is refused or away is logged; what uses it finds out by itself.
    """
    ids = {}
    for root in roots:
        path = _path(root)
        found = await metadata.get(path)
        record = _decoded(path, found.value) if found is not None else {}
        root_id = record.get("rootId") or f"{runtime.rng.getrandbits(128):032x}"
        version = found.version if found is not None else ABSENT
        if found is None:
            # The id is settled first: a crash behind it finds it again.
            version = await metadata.put(path, _encoded(root_id, in_service=False), version)
        ids[root] = root_id
        try:
            if not record.get("inService"):
                put_in_service(runtime.disk, root, root_id)
                await metadata.put(path, _encoded(root_id, in_service=True), version)
            check_root(runtime.disk, root, ids)
        except (OSError, StorageError) as e:
            log.error("%s: %s", root, e)
    return ids


def check_root(disk: Disk, root: str, ids: Ids) -> None:
    """Raise ``RefusedRootError`` unless a root is the one it should be. Blocks."""
    wanted = ids.get(root)
    if wanted is None:
        return
    try:
        file = disk.open(f"{root}/{MARKER}")
        try:
            found = json.loads(file.read(0, 4096))["rootId"]
        finally:
            file.close()
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise RefusedRootError(
            f"storage root {root} is refused: its file {MARKER} cannot be read ({e}). Mount the "
            "right directory, or let the job replicate_ledgers fill it again"
        ) from None
    if found != wanted:
        raise RefusedRootError(
            f"storage root {root} is refused: it is {found}, and {wanted} belongs there. Mount the "
            "right directory"
        )


def put_in_service(disk: Disk, root: str, root_id: str) -> None:
    """Give a root its file: from now on it counts. Blocks."""
    disk.make_dirs(root)
    document = {"version": FORMAT_VERSION, "rootId": root_id}
    disk.write_atomic(f"{root}/{MARKER}", json.dumps(document).encode())


def _path(root: str) -> str:
    return f"/storage-roots/{quote(root, safe='')}"


def _encoded(root_id: str, *, in_service: bool) -> bytes:
    document = {"version": FORMAT_VERSION, "rootId": root_id, "inService": in_service}
    return json.dumps(document).encode()


def _decoded(path: str, value: bytes) -> dict[str, str]:
    try:
        document: dict[str, str] = json.loads(value)
        check_version(document, FORMAT_VERSION)
    except (KeyError, TypeError, ValueError) as e:
        raise MetadataError(f"the record {path} cannot be read: {e!r}") from e
    return document
