"""Records of resources: JSON objects with a ``version`` of the format.

Each change is one compare-and-set, so several brokers may change records at the same time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsark.errors import BadVersionError, CorruptMetadataError, MetadataError
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT, MetadataStore, Versioned

if TYPE_CHECKING:
    from collections.abc import Callable

FORMAT_VERSION = 1

Json: TypeAlias = dict[str, Any]


class AlreadyExistsError(MetadataError):
    """A resource of this name already exists."""


class DoesNotExistError(MetadataError):
    """There is no resource of this name."""


class InUseError(MetadataError):
    """The resource contains others and cannot be deleted."""


class ProtectedError(MetadataError):
    """A part of the resource is only for super users."""


class InvalidResourceError(MetadataError):
    """A name or a value is invalid."""


def encode(record: Json) -> bytes:
    """The document of a record."""
    return json.dumps({"version": FORMAT_VERSION, **record}, separators=(",", ":")).encode()


def decode(found: Versioned) -> Json:
    """The record in a document; ``MetadataError`` for a newer format."""
    try:
        record: Json = json.loads(found.value)
    except ValueError as error:
        raise CorruptMetadataError(f"a record cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise CorruptMetadataError("a record cannot be read: it is no object")
    if record.get("version") != FORMAT_VERSION:
        raise CorruptMetadataError(
            f"a record has format version {record.get('version')}, this program knows "
            f"{FORMAT_VERSION}: it was written by a newer one"
        )
    return record


async def read(store: MetadataStore, path: str) -> Json | None:
    """The record at a path, or ``None``."""
    found = await store.get(path)
    return None if found is None else decode(found)


async def create(store: MetadataStore, path: str, record: Json, what: str) -> None:
    """Add a record. ``AlreadyExistsError`` names it as ``what``."""
    try:
        await put_settled(store, path, encode(record), ABSENT)
    except BadVersionError as error:
        raise AlreadyExistsError(f"{what} already exists") from error


async def change(
    store: MetadataStore, path: str, change: Callable[[Json], Json], what: str
) -> None:
    """Apply ``change``, repeatedly if another writer is first. ``DoesNotExistError``."""
    while True:
        found = await store.get(path)
        if found is None:
            raise DoesNotExistError(f"{what} does not exist")
        try:
            await store.put(path, encode(change(decode(found))), found.version)
        except BadVersionError:
            continue  # another writer was first: apply the change to its result
        return


async def delete(store: MetadataStore, path: str, what: str) -> None:
    """Remove a record in its present version. ``DoesNotExistError``."""
    found = await store.get(path)
    if found is None:
        raise DoesNotExistError(f"{what} does not exist")
    try:
        await store.delete(path, found.version)
    except BadVersionError as error:
        raise MetadataError(f"{what} was changed at the same time; try again") from error


async def delete_marked(store: MetadataStore, path: str, mark: str, what: str) -> None:
    """Remove a record with a mark, repeatedly if another writer is first. ``DoesNotExistError``.

    One without the mark is that of a successor, and stays.
    """
    while True:
        found = await store.get(path)
        if found is None or not decode(found).get(mark):
            raise DoesNotExistError(f"{what} does not exist")
        try:
            await store.delete(path, found.version)
        except BadVersionError:
            continue
        return
