"""Which bulk publishes a table has had, so that each is made once.

The latest ones are in the table record, where the compare-and-set of the intent notes them. When
these are many, they go to a document of their own, which only a publish reads. An origin is
forgotten by time, and never because there are many others.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from pulsark.errors import BadVersionError, MetadataError, StorageError
from pulsark.metadata.documents import check_version
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.storage.table.files.record import PUBLISHES_DAYS, Published, TableRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from pulsark.storage.table.files.table_limits import TableLimits

FORMAT_VERSION: Final = 1

NAME: Final = "published"
"""The document's name below the table record; names of sealed ledgers' documents are numbers."""

ONE_OFF_MS: Final = 86_400_000
"""The id of a write that is made once is needed as long as its driver may ask again."""

NAMED_MS: Final = PUBLISHES_DAYS * 86_400_000

_one_off = re.compile(r"batch-[0-9a-f]{32}")
"""The ids that Spark's writer makes up for a write without ``txnAppId``."""


def remembered(known: Iterable[Published], now_ms: int, least: int) -> list[Published]:
    """Those that may be asked for, the latest last; also the last ``least`` ones, however old.

    So a clock that was wrong for a while makes a table forget little.
    """
    found = sorted(known, key=lambda done: done.time_ms)
    certain = len(found) - least
    return [
        done
        for index, done in enumerate(found)
        if index >= certain or now_ms - done.time_ms < _kept_ms(done)
    ]


def _kept_ms(done: Published) -> int:
    return ONE_OFF_MS if _one_off.fullmatch(done.ident) else NAMED_MS


class Publishes:
    """The publishes of one table. ``path`` is the path of the table's record."""

    def __init__(self, path: str, metadata: MetadataStore, limits: TableLimits) -> None:
        self._path = f"{path}/{NAME}"
        self._metadata = metadata
        self._limits = limits
        self._older: Mapping[str, Published] | None = None
        """What is in the document, if that is known."""

    async def has(self, record: TableRecord, ident: str, number: int) -> bool:
        """Whether a publish was decided, or a later one of the same origin."""
        if record.has_published(ident, number):
            return True
        if self._older is None:
            self._older, _ = await self._read()
        done = self._older.get(ident)
        return done is not None and done.number >= number

    def is_due(self, record: TableRecord) -> bool:
        """Whether the record has enough of them to move them to the document."""
        return len(record.published) >= self._limits.published_in_record

    async def move(
        self, record: TableRecord, now_ms: int, owned: Callable[[], Awaitable[None]]
    ) -> None:
        """Write to the document what the record has; it may be taken from the record then.

        ``owned`` raises an error for an owner that is none any more. ``StorageError``: there are
        too many that must not be forgotten.
        """

        def checked(kept: list[Published]) -> list[Published]:
            if len(kept) > self._limits.published_most:
                raise StorageError(
                    f"the table has had {len(kept)} writes that must not be forgotten yet, and may "
                    f"have {self._limits.published_most}: write more rows at a time, or wait; a "
                    "write is forgotten after a day, a query and a txnAppId after 30 days"
                )
            return kept

        await self._add(record.published, now_ms, owned, checked)

    async def take_up(
        self, found: Collection[Published], now_ms: int, owned: Callable[[], Awaitable[None]]
    ) -> None:
        """Write to the document what only a log knows. If that is too much, the latest are kept."""
        most = self._limits.published_most
        if found:
            await self._add(found, now_ms, owned, lambda kept: kept[-most:])

    async def _add(
        self,
        new: Iterable[Published],
        now_ms: int,
        owned: Callable[[], Awaitable[None]],
        bounded: Callable[[list[Published]], list[Published]],
    ) -> None:
        while True:
            known, version = await self._read()
            await owned()
            for done in new:
                before = known.get(done.ident)
                if before is None or before.number <= done.number:
                    known[done.ident] = done
            kept = bounded(remembered(known.values(), now_ms, self._limits.published_least))
            try:
                await self._metadata.put(self._path, _encode(kept), version)
            except BadVersionError:
                continue
            self._older = {done.ident: done for done in kept}
            return

    async def _read(self) -> tuple[dict[str, Published], int]:
        found = await self._metadata.get(self._path)
        if found is None:
            return {}, ABSENT
        try:
            document = json.loads(found.value)
            check_version(document, FORMAT_VERSION)
            known = list(map(Published.from_json, document["published"]))
        except (KeyError, TypeError, ValueError) as e:
            raise MetadataError(f"the record {self._path} cannot be read: {e!r}") from e
        return {done.ident: done for done in known}, found.version


def _encode(known: Iterable[Published]) -> bytes:
    document = {"version": FORMAT_VERSION, "published": [list(done) for done in known]}
    return json.dumps(document, separators=(",", ":")).encode()
