"""A table process that is none: it answers in the process, on any disk, in virtual time."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pulsark.errors import StorageError
from pulsark.metadata.store import MetadataStore
from pulsark.runtime import Disk, Runtime
from pulsark.storage.table.files.table_limits import DEFAULT_LIMITS, TableLimits
from pulsark.storage.table.process import pipe
from pulsark.storage.table.process.process import Piece, Reply, TableProcess, encode_piece
from pulsark.storage.table.process.worker import TableWorker
from pulsark.storage.table.root_identity import StorageRoots
from pulsark.storage.table.tables import Tables
from tests.support.gates import Gate


class InlineTable(TableProcess):
    """``requests`` are those that came; ``failure`` happens instead of the next reply.

    With a ``gate`` each request passes it, and its reply.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk
        self._worker = TableWorker(disk)
        self.requests: list[dict[str, Any]] = []
        self.failure: StorageError | None = None
        self.gate: Gate | None = None

    async def forget(self) -> None:
        await super().forget()
        self._worker = TableWorker(self._disk)

    async def _exchange(
        self,
        request: dict[str, Any],
        entries: AsyncIterator[Piece] | None = None,
        subject: str = "",
    ) -> Reply:
        pieces = []
        if entries is not None:
            pieces = [encode_piece(piece) async for piece in entries]
            pieces.append(pipe.encode({"op": "end"}))
        await asyncio.sleep(0.001)
        if self.gate is not None:
            await self.gate.passes()
        self.requests.append(request)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        stream = io.BytesIO(b"".join(pieces))
        reply = self._worker.answer(json.loads(json.dumps(request)), stream)
        assert not stream.read()
        if self.gate is not None:
            await self.gate.passes()
        found = pipe.read(io.BytesIO(pipe.encode(*reply)))
        assert found is not None
        return found


def inline_tables(
    roots: Sequence[str] | StorageRoots,
    metadata: MetadataStore,
    runtime: Runtime,
    made: Callable[[InlineTable], None] = lambda table: None,
    limits: TableLimits = DEFAULT_LIMITS,
    **options: int,
) -> Tables:
    """Tables whose processes are inline; ``made`` gets each: first that for sealing."""

    def new_process() -> TableProcess:
        table = InlineTable(runtime.disk)
        made(table)
        return table

    if not isinstance(roots, StorageRoots):
        roots = StorageRoots(tuple(roots))
    return Tables(roots, metadata, runtime, new_process=new_process, limits=limits, **options)
