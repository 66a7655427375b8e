"""The table processes of a broker, and which of them does what.

Two seal: a patient one that takes what is left of the processors, and another. A third seals topics
that made trouble (``apart``), and the fourth reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pulsark.errors import (
    ProcessEndedError,
    SealedApartError,
    SlowSealError,
    StorageError,
    UnreadableExcerptError,
    UnsealableError,
)
from pulsark.runtime import Runtime, Worker, run_in_worker
from pulsark.storage.roots.root_files import in_object_store
from pulsark.storage.table.files import orphans
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.process.process import Entries, Piece, TableProcess

if TYPE_CHECKING:
    from pulsark.schemas.value_schemas import ValueSchemas
    from pulsark.storage.roots.root_files import RootFiles
    from pulsark.storage.table.files.record import DataFile
    from pulsark.storage.table.process.apart import ApartTopics
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
PATIENCE_RATE = 8 << 20
"""Bytes for which sealing a range patiently may take a second more."""

PATIENCE_WITH_STORES_SECONDS = 60.0
"""The same where files go to an object store, for which no processor is needed to wait."""

HURRY_SECONDS = 300.0
"""Time without patience after a range that took longer."""

SHARED_CPU_SECONDS = 0.2
SHARED_CPU_RATE = 4 << 20
"""Time of a processor that sealing a range takes in a process that all topics share, and bytes for
which it takes a second more. Beyond that it uses up what ``Excess`` leaves its topic and namespace.
Others wait meanwhile."""

REFUSED_TOPICS_MAX = 10_000
"""Most topics whose refused payloads are counted one by one."""

EntriesOf = Callable[[SealRange], AsyncIterator[Entries]]
"""Gives the entries of a range in pieces, in order and without gaps."""

PiecesOf = Callable[[SealRange], AsyncIterator[Piece]]
"""Gives the same pieces; some may only say where entries are."""


class RefusedPayloads:
    """Payloads that were kept as they were sent because they are beyond the bounds of decoding.

    A payload counts whenever it is written: also when small files are merged.
    """

    def __init__(self) -> None:
        self.total = 0
        self._of: OrderedDict[str, int] = OrderedDict()

    def add(self, topic: str, payloads: int) -> None:
        """Count payloads of a topic; the log tells of the first."""
        if topic not in self._of:
            log.warning(
                "%s: %d payloads are nested too deep or have too many values, so the table keeps "
                "them as they were sent, in value_raw", topic, payloads,
            )  # fmt: skip
        self.total += payloads
        self._of[topic] = self._of.pop(topic, 0) + payloads
        if len(self._of) > REFUSED_TOPICS_MAX:
            self._of.popitem(last=False)

    def of(self, topic: str) -> int:
        """Return how many payloads of a topic were refused."""
        return self._of.get(topic, 0)


class TableProcesses:
    """What is sealed here are files that are part of nothing. What fails leaves none."""

    def __init__(
        self,
        new_process: Callable[[], TableProcess],
        runtime: Runtime,
        thread: Callable[[], Worker],
        apart: ApartTopics,
        files: RootFiles | None = None,
    ) -> None:
        self.normal, self.reading = new_process(), new_process()
        self.patient, self.alone = new_process(), new_process()
        self.apart = apart
        self.refused = RefusedPayloads()
        for process in (self.normal, self.patient, self.alone):
            process.on_refused = self.refused.add
        self.reading.priority = "urgent"
        self.patient.priority = "patient"
        self._runtime = runtime
        self._thread = thread
        self._files: RootFiles = files or runtime.disk
        self.spare: Callable[[], Awaitable[None]] | None = None
        """Waited for before a range is sealed patiently."""
        self._patience_from = 0.0
        """Since the patient process got no processor, the other one seals until then."""

    async def close(self) -> None:
        """End them."""
        await self.apart.close()
        await self.normal.close()
        await self.patient.close()
        await self.alone.close()
        await self.reading.close()

    def new_attempt(self) -> str:
        """What makes the names of the files of one attempt differ from all others."""
        return orphans.nonce(self._runtime.clock.now_ms(), self._runtime.rng.getrandbits(48))

    async def seal(
        self,
        wanted: SealRange,
        roots: Sequence[str],
        roots_needed: int,
        target_bytes: int,
        values: ValueSchemas,
        entries_of: EntriesOf,
        located: PiecesOf | None = None,
        patient: bool = False,
        as_sent: bool = False,
        *,
        base: TopicName,
        on_lost: Callable[[Mapping[str, int]], None] | None = None,
    ) -> list[DataFile]:
        """``seal.seal`` of a range of a topic; ``located`` is asked first where it is given.

        ``SealedApartError``: the topic made trouble, and is sealed apart if this is called again.
        """

        async def attempt(
            process: TableProcess, source: PiecesOf, seconds: float | None
        ) -> list[DataFile]:
            name = self.new_attempt()
            try:
                async with asyncio.timeout(seconds):
                    return await process.seal(
                        source(wanted),
                        wanted.partition,
                        wanted.ledger_id,
                        roots,
                        name,
                        target_bytes,
                        roots_needed,
                        values,
                        as_sent=as_sent,
                        table=str(base),
                        cpu_seconds_max=None if process is self.alone else most,
                        on_lost=on_lost,
                        on_used=used,
                    )
            except (StorageError, TimeoutError):
                await self._remove_attempt(roots, wanted, name)
                raise

        source: PiecesOf = located or entries_of
        explained = SHARED_CPU_SECONDS + wanted.size / SHARED_CPU_RATE
        most = explained + self.apart.excess.left(base)

        def used(seconds: float) -> None:
            if process is not self.alone:
                self.apart.excess.add(base, seconds - explained)

        now = self._runtime.clock.monotonic()
        process, seconds = self._choose(base, wanted, roots, patient=patient)
        if process is self.patient and self.spare is not None:
            await self.spare()
        while True:
            try:
                return await attempt(process, source, seconds)
            except TimeoutError:
                log.info("sealing takes its share of the processors, because clients left it none")
                self._patience_from = now + HURRY_SECONDS
                process, seconds = self.normal, None
            except (ProcessEndedError, UnsealableError) as e:
                if isinstance(e, SlowSealError | UnsealableError):
                    self.apart.made_trouble(base, str(e))
                else:
                    self.apart.ended_process(base, str(e))
                if process is self.alone:
                    raise
                raise SealedApartError(f"{e}; the topic is sealed apart from others now") from e
            except UnreadableExcerptError as e:
                log.info(
                    "the table process cannot read the journal, so the bookies read for it: %s", e
                )
                source = entries_of

    def _choose(
        self, base: TopicName, wanted: SealRange, roots: Sequence[str], *, patient: bool
    ) -> tuple[TableProcess, float | None]:
        """Return the process that seals a range, and the seconds that it may take, if any."""
        if base in self.apart:
            return self.alone, None
        if not patient or self._runtime.clock.monotonic() < self._patience_from:
            return self.normal, None
        far = any(map(in_object_store, roots))
        least = PATIENCE_WITH_STORES_SECONDS if far else PATIENCE_SECONDS
        return self.patient, least + wanted.size / PATIENCE_RATE

    async def _remove_attempt(self, roots: Sequence[str], wanted: SealRange, attempt: str) -> None:
        """Delete what a process wrote that died; a root that cannot be reached keeps it."""
        disk = self._files
        for root in roots:
            remove = partial(
                orphans.remove_attempt, disk, root, wanted.partition, wanted.ledger_id, attempt
            )
            try:
                await run_in_worker(self._thread(), remove)
            except OSError as e:
                log.warning("%s: cannot delete staged files yet: %s", root, e)
