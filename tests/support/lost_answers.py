"""A metadata store that does what it is told and does not say so, or says that it failed."""

from __future__ import annotations

from collections.abc import Sequence

from pulsark.errors import MetadataError, OutcomeUnknownError
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.store import Versioned
from tests.sim.metadata import paths_of


class ForgetfulStore(MemoryMetadataStore):
    """Answers the write number ``loses`` (from 1) below ``prefix`` with an error of unknown
    outcome; ``done`` says whether it was carried out."""

    def __init__(self, tree: MemoryTree, prefix: str) -> None:
        super().__init__(tree)
        self._prefix = prefix
        self.writes = 0
        self.loses = 0
        self.done = True

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        concerned = any(path.startswith(self._prefix) for path in paths_of(changes))
        self.writes += concerned
        if not concerned or self.writes != self.loses:
            return await super().commit(changes)
        if self.done:
            await super().commit(changes)
        raise OutcomeUnknownError("the store did not answer")


class MortalStore(MemoryMetadataStore):
    """That of a process that is killed before the write number ``last`` + 1: nothing is done
    from there on."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.writes = 0
        self.last: int | None = None

    @property
    def is_dead(self) -> bool:
        """Whether its process is."""
        return self.last is not None and self.writes >= self.last

    def _write(self) -> None:
        self._check_alive()
        self.writes += 1

    def _check_alive(self) -> None:
        if self.is_dead:
            raise MetadataError("the process is dead")

    async def get(self, path: str) -> Versioned | None:
        self._check_alive()
        return await super().get(path)

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        self._write()
        return await super().commit(changes)
