"""The buckets of one topic: the stored index of when its messages are due.

A bucket is a ledger of its own, written once: a header, then its pages, one entry each. The
record ``/delayed-buckets/<tenant>/<namespace>/<domain>/<topic>`` lists the buckets.

All of it is derived from the messages, and valid whichever broker wrote it: for a missing or
damaged bucket its messages are read again, and a superfluous one is harmless. So the record has no
owner; writers merge their changes into its current content.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import (
    BadVersionError,
    CorruptEntryError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
)
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.storage.delayed.delayed_pages import (
    BucketHeader,
    PageInfo,
    decode_header,
    decode_page,
    encode_header,
    encode_page,
)
from pulsark.storage.managed_ledger.deletion import delete_ledgers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
_ATTEMPTS = 10
_HEADER_BYTES = 1 << 20


class StoredBucket(NamedTuple):
    """A bucket that was found; its id is that of its ledger."""

    bucket_id: int
    header: BucketHeader


@dataclass(frozen=True, slots=True)
class BucketList:
    """The value of the record. ``to_delete`` are to be deleted: being written, or out of use."""

    topic_id: str
    buckets: tuple[int, ...] = ()
    to_delete: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        """The stored form."""
        document = {
            "version": FORMAT_VERSION,
            "topicId": self.topic_id,
            "buckets": self.buckets,
            "doomed": self.to_delete,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes) -> BucketList:
        """Parse a stored value; ``StorageError`` if it is not one this program knows."""
        try:
            fields = json.loads(value)
            if fields["version"] != FORMAT_VERSION:
                raise ValueError(f"format {fields['version']}")
            return cls(fields["topicId"], tuple(fields["buckets"]), tuple(fields["doomed"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"A list of buckets cannot be read: {value[:200]!r}") from error

    def changed(
        self, *, add: Iterable[int] = (), doom: Iterable[int] = (), gone: Iterable[int] = ()
    ) -> BucketList:
        """With buckets that are valid from now on, that are to be deleted, or that are."""
        added, doomed, deleted = set(add), set(doom), set(gone)
        return replace(
            self,
            buckets=tuple(sorted({*self.buckets, *added} - doomed - deleted)),
            to_delete=tuple(sorted({*self.to_delete, *doomed} - added - deleted)),
        )


class DelayedBuckets:
    """Writes, reads and deletes the buckets of a topic. One change of the record at a time."""

    def __init__(
        self,
        path: str,
        topic_id: str,
        manager: LedgerManager,
        metadata: MetadataStore,
        new_config: Callable[[str], LedgerConfig],
    ) -> None:
        self.path = path
        self._topic_id = topic_id
        self._manager = manager
        self._metadata = metadata
        self._new_config = new_config
        self._busy = asyncio.Lock()
        """Held while others are deleted, and while one is written that is still to be deleted."""

    async def load(self) -> list[StoredBucket]:
        """All buckets that can be read. Deletes what is out of use."""
        listed = await self._list()
        if listed is None:
            return []
        if listed.topic_id != self._topic_id:  # an earlier topic had this name
            await self._change()
            listed = BucketList(self._topic_id)
        loaded, broken = [], []
        for bucket_id in listed.buckets:
            try:
                loaded.append(await self._load(bucket_id))
            except (NoSuchLedgerError, NoSuchEntryError, CorruptEntryError) as error:
                log.warning(
                    "%s: bucket %d of delayed messages is lost, rebuilding it: %s",
                    self.path,
                    bucket_id,
                    error,
                )
                broken.append(bucket_id)
            except StorageError as error:
                log.warning(
                    "%s: ignoring bucket %d of delayed messages: %s", self.path, bucket_id, error
                )
        await self.remove(broken)
        return loaded

    async def _load(self, bucket_id: int) -> StoredBucket:
        entries = await self._manager.read(bucket_id, 0, 0, _HEADER_BYTES)
        if not entries:
            raise NoSuchEntryError(f"Bucket {bucket_id} is empty")
        return StoredBucket(bucket_id, decode_header(entries[0][1], self._topic_id))

    async def write(self, pages: Sequence[bytes]) -> int:
        """Store a bucket; returns its id once it is durable, and listed."""
        async with self._busy:
            writer = await self._manager.create(self._new_config(self.path), _Quiet())
            try:
                await self._change(doom=[writer.ledger_id])
                writer.append([encode_header(self._topic_id, pages)])
                for page in pages:
                    await asyncio.sleep(0)  # each takes a millisecond
                    writer.append([encode_page(page)])
                await writer.close()
                await self._change(add=[writer.ledger_id])
            finally:
                writer.abandon()
            return writer.ledger_id

    async def read(self, bucket_id: int, index: int, info: PageInfo) -> bytes:
        """The keys of one page."""
        entries = await self._manager.read(bucket_id, index + 1, index + 1, 1)
        if not entries:
            raise NoSuchEntryError(f"Bucket {bucket_id} has no page {index}")
        return decode_page(entries[0][1], info)

    async def remove(self, bucket_ids: Sequence[int]) -> None:
        """Delete buckets that are out of use, and what earlier attempts left."""
        async with self._busy:
            if bucket_ids:
                await self._change(doom=bucket_ids)
            listed = await self._list()
            if listed is not None and listed.to_delete:
                gone = await delete_ledgers(listed.to_delete, self._manager)
                await self._change(gone=gone)

    async def delete(self) -> None:
        """Delete everything: the topic goes."""
        listed = await self._list()
        if listed is None:
            return
        await self.remove(listed.buckets)
        found = await self._metadata.get(self.path)
        if found is not None and not BucketList.from_json(found.value).to_delete:
            await self._metadata.delete(self.path, found.version)

    async def _list(self) -> BucketList | None:
        found = await self._metadata.get(self.path)
        return None if found is None else BucketList.from_json(found.value)

    async def _change(
        self, *, add: Iterable[int] = (), doom: Iterable[int] = (), gone: Iterable[int] = ()
    ) -> None:
        """Merge a change into the record, whatever it says by now."""
        for _ in range(_ATTEMPTS):
            found = await self._metadata.get(self.path)
            if found is None:
                listed, version = BucketList(self._topic_id), ABSENT
            else:
                listed, version = BucketList.from_json(found.value), found.version
                if listed.topic_id != self._topic_id:
                    doomed = (*listed.buckets, *listed.to_delete)
                    listed = BucketList(self._topic_id, to_delete=doomed)
            changed = listed.changed(add=add, doom=doom, gone=gone)
            try:
                await self._metadata.put(self.path, changed.to_json(), version)
            except BadVersionError:
                continue
            return
        raise MetadataError(f"{self.path} is changed by others all the time")


class _Quiet:
    """The listener of a bucket's ledger: closing the writer tells how it went."""

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """Nothing to do."""

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        """Nothing to do."""
