"""A storage root's identity: one that comes back empty must not pass for one with its files.

A root has a random id, in a file on it and in the metadata store. Where both do not agree the root
is refused: nothing is written to it, and it counts for no copy, until a job has filled it again
and it gets its file back. Reads fall back to other roots by themselves.

The id also tells a root that was moved: under its new path it is what it was under the old one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pulsark.errors import BadVersionError, MetadataError, StorageError
from pulsark.metadata.documents import check_version
from pulsark.metadata.paths import STORAGE_ROOTS, storage_root_at, storage_root_path
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.runtime import run_in_worker
from pulsark.storage.bookie.fleet import leave_out_ledger_ids
from pulsark.storage.roots.root_files import ROOT_MARKER, in_object_store
from pulsark.storage.roots.store_pause import DeniedStoreError, PausedStoreError

if TYPE_CHECKING:
    from pulsark.runtime import Runtime, Worker
    from pulsark.storage.roots.root_files import RootFiles

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
ATTEMPTS: Final = 5
"""How often a root is looked at that another broker begins with at the same time."""

Ids = Mapping[str, str]
"""By storage root: the id that it must have."""


class RefusedRootError(StorageError):
    """A storage root is not the one that is known under its path."""


@dataclass(frozen=True, slots=True)
class StorageRoots:
    """A process's storage roots: paths, identities, and former paths."""

    paths: tuple[str, ...]
    ids: Ids = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    """By a former path of a root: its path now."""

    def where(self, directory: str) -> str:
        """Where a table's directory is now that was at this path once."""
        root = storage_root_of(directory)
        return self.moved.get(root, root) + directory[len(root) :]

    def check(self, disk: RootFiles, root: str) -> None:
        """Raise ``RefusedRootError`` unless a root is one of them, and still itself. Blocks."""
        if root not in self.paths:
            raise RefusedRootError(
                f"storage root {root} is none of this broker's any more. Bring it back "
                "(tableRoots, ledgerDirectories), or let the job replicate_ledgers give its tables "
                "another one"
            )
        check_root(disk, root, self.ids)


def highest_ledger_id(disk: RootFiles, roots: Iterable[str]) -> int:
    """The highest id of a ledger that has a directory in a table, or -1. Blocks, and for long."""
    highest = -1
    for root in roots:
        below = [root]
        for _ in range(4):  # tenant, namespace, table, partition
            below = [f"{path}/{name}" for path in below for name in disk.list(path)]
        for path in below:
            for name in disk.list(path):
                key, _, number = name.partition("=")
                if key == "ledger_id" and number.isdecimal():
                    highest = max(highest, int(number))
    return highest


def storage_root_of(directory: str) -> str:
    """The storage root of a table's directory (``record.table_directory``)."""
    return directory.rsplit("/", 3)[0]


async def commission(
    roots: Sequence[str],
    metadata: MetadataStore,
    runtime: Runtime,
    *,
    files: RootFiles | None = None,
    adopt: bool = False,
) -> StorageRoots:
    """The storage roots of a process; one that was never known gets an id, and its file.

    A root that is refused or away is logged; what uses it finds out by itself. One with a file that
    this metadata store does not know is refused, too: it is another store's, or the store went
    back. With ``adopt`` it is taken, and no ledger of its tables has an id that is given again.
    ``files`` are those of the roots, if not all are on the runtime's disk.
    """
    known = await _known(metadata)
    files = files or runtime.disk
    worker = runtime.new_worker("roots")
    try:
        commissioner = _Commissioner(roots, known, metadata, runtime, files, worker, adopt)
        ids = {root: await commissioner.id_of(root) for root in roots}
        if adopt:
            highest = await run_in_worker(worker, partial(highest_ledger_id, files, roots))
            await leave_out_ledger_ids(metadata, highest)
    finally:
        worker.close()
    now = {root_id: root for root, root_id in ids.items()}
    moved = {p: now[i] for p, i in known.items() if p not in roots and i in now}
    for before, root in moved.items():
        log.info("storage root %s was %s before", root, before)
    return StorageRoots(tuple(roots), ids, moved)


class _Commissioner:
    def __init__(
        self,
        roots: Sequence[str],
        known: Ids,
        metadata: MetadataStore,
        runtime: Runtime,
        files: RootFiles,
        worker: Worker,
        adopt: bool,
    ) -> None:
        self._here = {known[root] for root in roots if root in known}
        self._away = set(known.values()) - self._here
        self._metadata = metadata
        self._rng = runtime.rng
        self._files = files
        self._worker = worker
        self._adopt = adopt

    async def id_of(self, root: str) -> str:
        """The id that a root must have, which is in service if it may be."""
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                return await self._id_of(root)
            except BadVersionError:  # another broker has the same root, and begins, too
                if not attempts_left:
                    raise
        raise AssertionError("unreachable")

    async def _id_of(self, root: str) -> str:
        path, files = storage_root_path(root), self._files
        found = await self._metadata.get(path)
        record = _decoded(path, found.value) if found is not None else {}
        denied, on_disk = await run_in_worker(self._worker, partial(_id_on, files, root))
        # What was refused here before is looked at anew: it is in service only once it is taken.
        is_new = not record.get("inService")
        is_stranger = is_new and on_disk is not None and on_disk not in self._away | self._here
        has_moved = is_new and (on_disk in self._away or (is_stranger and self._adopt))
        root_id = on_disk if has_moved else record.get("rootId")
        root_id = root_id or f"{self._rng.getrandbits(128):032x}"
        version = found.version if found is not None else ABSENT
        if found is None or has_moved:
            # The id is settled first: a crash behind it finds it again.
            value = _encoded(root_id, in_service=has_moved)
            version = await self._metadata.put(path, value, version)
        # What is a copy of another root stays as it is, and is refused.
        begins = is_new and (on_disk is None or on_disk == root_id) and not has_moved
        try:
            if denied is not None:
                raise _denied(root, denied)
            # A start that was broken off may have left the mark in a store that overwrites.
            if begins and (on_disk is None or in_object_store(root)):
                await run_in_worker(self._worker, partial(_mark, files, root, root_id))
            await run_in_worker(self._worker, partial(check_root, files, root, {root: root_id}))
        except (OSError, StorageError) as e:
            if isinstance(e, StorageError):
                log.error("%s", e)
            else:
                log.error(
                    "storage root %s cannot be used: %s. Nothing is sealed to it until it can, and "
                    "the broker is started again",
                    root, e,
                )  # fmt: skip
            return root_id
        if begins:
            await self._metadata.put(path, _encoded(root_id, in_service=True), version)
        return root_id


def _mark(files: RootFiles, root: str, root_id: str) -> None:
    """Give a new root its file, unless there is one, which another broker may have made."""
    files.make_dirs(root)
    path, marker = f"{root}/{ROOT_MARKER}", _marker(root_id)
    try:
        files.write_new(path, marker)
        if in_object_store(root):  # some do not know what If-None-Match means, and write
            # Other bytes: of a put whose answer is lost, what stands there tells what it did.
            files.write_new(path, marker + b"\n")
            files.remove(path)
            raise RefusedRootError(
                f"storage root {root} is refused: its object store writes a new object in place of "
                "one that is there. tableRoots needs one that knows If-None-Match: *"
            )
    except FileExistsError:
        pass


async def _known(metadata: MetadataStore) -> dict[str, str]:
    """The ids of all roots that ever were, by their paths."""
    found = {}
    for child in await metadata.children(STORAGE_ROOTS):
        value = await metadata.get(f"{STORAGE_ROOTS}/{child}")
        if value is not None:
            found[storage_root_at(child)] = _decoded(child, value.value).get("rootId", "")
    return found


def known_ids(records: Mapping[str, bytes]) -> dict[str, str]:
    """The ids of roots in service, by path, from the values below ``STORAGE_ROOTS``."""
    decoded = {name: _decoded(name, value) for name, value in records.items()}
    return {
        storage_root_at(name): record.get("rootId", "")
        for name, record in decoded.items()
        if record.get("inService")
    }


def _id_on(disk: RootFiles, root: str) -> tuple[DeniedStoreError | None, str | None]:
    """The id that a root has, if it can be read; or why nobody needs to ask again."""
    try:
        return None, _read_id(disk, root)
    except DeniedStoreError as e:
        return e, None
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _denied(root: str, error: DeniedStoreError) -> RefusedRootError:
    return RefusedRootError(
        f"storage root {root} of tableRoots is refused: its object store lets nobody in with these "
        f"keys ({error.strerror}). Give the broker others (objectStoreCredentialsFile; without it "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine), or let these "
        "read, write, delete and list what is below the root; then start the broker again"
    )


def _read_id(disk: RootFiles, root: str) -> str:
    file = disk.open(f"{root}/{ROOT_MARKER}")
    try:
        return str(json.loads(file.read(0, 4096))["rootId"])
    finally:
        file.close()


def check_root(disk: RootFiles, root: str, ids: Ids) -> None:
    """Raise ``RefusedRootError`` unless a root is the one it should be. Blocks."""
    wanted = ids.get(root)
    if wanted is None:
        return
    found = root_id(disk, root)
    if found != wanted:
        raise RefusedRootError(
            f"storage root {root} is refused: it is {found}, and {wanted} belongs there. Mount the "
            "right directory"
        )


def root_id(disk: RootFiles, root: str) -> str:
    """Return the id that a root has; ``RefusedRootError`` if it cannot be read. Blocks."""
    try:
        return _read_id(disk, root)
    except PausedStoreError:
        raise
    except DeniedStoreError as e:
        raise _denied(root, e) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        what = "is not there" if isinstance(e, FileNotFoundError) else f"cannot be read ({e})"
        raise RefusedRootError(
            f"storage root {root} is refused: its file {ROOT_MARKER} {what}. Mount the right "
            "directory, or let the job replicate_ledgers fill it again"
        ) from None


def put_in_service(disk: RootFiles, root: str, root_id: str) -> None:
    """Give a root its file: from now on it counts. Blocks."""
    disk.make_dirs(root)
    disk.write_atomic(f"{root}/{ROOT_MARKER}", _marker(root_id))


def _marker(root_id: str) -> bytes:
    return json.dumps({"version": FORMAT_VERSION, "rootId": root_id}).encode()


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
