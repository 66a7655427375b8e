"""Commits on their way to etcd: each is a transaction that compares what is known of its paths.

If the comparison fails, nothing was done, and the same transaction reads what is stored now: all at
one revision. By that the commit is refused, or sent again. What is known may be old; nothing is
refused by it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataRefusedError
from pulsark.metadata.changes import Check
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.plan import Fact, Facts, needs_fact, parts_of, plan, problem, read_value
from pulsark.metadata.store import Versioned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.metadata.changes import Change
    from pulsark.metadata.etcd.layout import Layout
    from pulsark.metadata.etcd.messages import KeyValue
    from pulsark.metadata.etcd.transactions import Transactions

_ATTEMPTS: Final = 100
"""Each but the last found that somebody else had just written."""


@dataclass(frozen=True, slots=True)
class Written:
    """A commit that was made."""

    revision: int
    versions: Sequence[int]
    is_watched: bool
    """Whether the watches of all processes tell of it, also this one's."""


class Writer:
    """Writes of one session."""

    def __init__(self, transactions: Transactions, layout: Layout, lease: int) -> None:
        self._transactions = transactions
        self._layout = layout
        self._lease = lease
        self._facts = Facts()
        self._busy: dict[str, asyncio.Future[None]] = {}
        """For each path that is being written, the end of the last write."""

    async def read(self, path: str, deadline: float) -> Versioned | None:
        """The value at a path, and what is known by that."""
        answer = await self._transactions.read([messages.get(self._layout.key(path))], deadline)
        if not answer.found[0]:
            self._facts.learn(path, None)
            return None
        value, fact = read_value(path, answer.found[0][0])
        self._facts.learn(path, fact)
        return Versioned(value, fact.version)

    async def write(self, changes: Sequence[Change], deadline: float) -> Written:
        """Make a commit. The errors are those of ``MetadataStore.commit``.

        Writes of one path are made in the order of their calls.
        """
        before = {self._busy[c.path] for c in changes if c.path in self._busy}
        changed = [c.path for c in changes if not isinstance(c, Check)]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._busy.update(dict.fromkeys(changed, done))
        try:
            for each in before:  # these have deadlines of their own
                await asyncio.shield(each)
            return await self._write(changes, deadline)
        finally:
            self._ended(changed, done, [each for each in before if not each.done()])

    def _ended(
        self,
        changed: Sequence[str],
        done: asyncio.Future[None],
        before: Sequence[asyncio.Future[None]],
    ) -> None:
        """Let the next write begin, once those before have ended, too: a caller may go earlier."""
        if before:
            first, *left = before
            first.add_done_callback(lambda _: self._ended(changed, done, left))
            return
        done.set_result(None)
        for path in changed:
            if self._busy.get(path) is done:
                del self._busy[path]

    async def _write(self, changes: Sequence[Change], deadline: float) -> Written:
        now: dict[str, Fact] | None = None
        for _ in range(_ATTEMPTS):
            if now is None:
                await self._read_unknown(changes, deadline)
            facts = {c.path: self._facts.of(c.path) for c in changes} if now is None else now
            found = (problem(change, facts[change.path], self._lease) for change in changes)
            if (refused := next(filter(None, found), None)) is not None:
                if now is not None:
                    raise refused
                now = await self._look(changes, deadline)
                continue
            made = plan(changes, facts, self._facts.parts, self._layout, self._lease)
            answer = await self._transactions.write(
                made.compares, made.operations, self._reads(changes), deadline
            )
            if answer.succeeded:
                made.succeeded(answer.revision, self._facts)
                return Written(answer.revision, made.versions, made.is_watched)
            now = await self._take(changes, answer.found, deadline)
        raise MetadataRefusedError("others write the same all the time; nothing was written")

    async def _read_unknown(self, changes: Iterable[Change], deadline: float) -> None:
        unknown = [c.path for c in changes if needs_fact(c) and not self._facts.knows(c.path)]
        await asyncio.gather(*(self.read(path, deadline) for path in unknown))

    def _reads(self, changes: Sequence[Change]) -> list[messages.Json]:
        keys = [self._layout.deletions(part) for part in parts_of(changes)]
        keys += [self._layout.key(change.path) for change in changes]
        return [messages.get(key, keys_only=True) for key in keys]

    async def _look(self, changes: Sequence[Change], deadline: float) -> dict[str, Fact] | None:
        answer = await self._transactions.read(self._reads(changes), deadline)
        return await self._take(changes, answer.found, deadline)

    async def _take(
        self, changes: Sequence[Change], found: Sequence[Sequence[KeyValue]], deadline: float
    ) -> dict[str, Fact] | None:
        """Learn what ``_reads`` has read; returns all facts of that moment, if they are known."""
        parts = parts_of(changes)
        for part, answer in zip(parts, found, strict=False):
            self._facts.parts[part] = answer[0].changed if answer else 0
        now: dict[str, Fact] = {}
        new: dict[str, KeyValue] = {}
        for change, answer in zip(changes, found[len(parts) :], strict=True):
            path, known = change.path, self._facts.of(change.path)
            if not answer:
                now[path] = None
            elif known is not None and known.created == answer[0].created:
                now[path] = replace(known, changed=answer[0].changed, count=answer[0].version)
            else:
                new[path] = answer[0]
        for path, fact in now.items():
            self._facts.learn(path, fact)
        await asyncio.gather(*(self.read(path, deadline) for path in new))
        now |= {path: self._facts.of(path) for path in new}
        if all((fact := now[path]) and fact.changed == new[path].changed for path in new):
            return now
        return None
