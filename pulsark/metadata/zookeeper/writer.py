"""Commits on their way to ZooKeeper: those of one turn of the event loop share one multi.

One multi is under way at a time; what is asked for meanwhile goes into the next one. Commits that
touch the same path follow each other. If ZooKeeper refuses a multi, nothing of it was done: the
commit that it names is looked at again with fresh facts, and the rest is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pulsark.errors import (
    CorruptMetadataError,
    MetadataError,
    MetadataRefusedError,
    OutcomeUnknownError,
)
from pulsark.metadata.based_values import decode
from pulsark.metadata.changes import Check, Delete, Put
from pulsark.metadata.store import ABSENT
from pulsark.metadata.zookeeper.facts import Fact, NoNode, Parent, Part, Valued
from pulsark.metadata.zookeeper.layout import part_node, part_of
from pulsark.metadata.zookeeper.nodes import (
    CreateNode,
    EphemeralParentError,
    NodeError,
    NodeExistsError,
    NoNodeError,
)
from pulsark.metadata.zookeeper.plan import NeedsFreshError, Plan, Prune, versions_of
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.zookeeper.client import ZooKeeperClient
    from pulsark.metadata.zookeeper.layout import Layout
    from pulsark.metadata.zookeeper.nodes import Node, Result
    from pulsark.metadata.zookeeper.plan import Step, Wanted

log = logging.getLogger(__name__)

CHANGES_AT_ONCE: Final = 200
BYTES_AT_ONCE: Final = 512 << 10
"""Most of one multi, unless a single commit has more: ZooKeeper takes it as one packet."""

_KNOWN_MAX: Final = 100_000


class _Commit:
    """One commit that waits for its outcome."""

    __slots__ = ("deadline", "fresh", "future", "nodes", "size", "wanted")

    def __init__(self, wanted: Sequence[Wanted], nodes: list[str], deadline: float) -> None:
        self.wanted = wanted
        self.nodes = nodes
        self.deadline = deadline
        self.size = sum(len(each.value) for each in wanted if isinstance(each, Put))
        self.fresh = False
        self.future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    def going(self) -> list[str]:
        """The nodes that it deletes, if nothing is below them."""
        both = zip(self.nodes, self.wanted, strict=True)
        return [node for node, wanted in both if isinstance(wanted, Delete | Prune)]


class Writer:
    """All writes of one session."""

    def __init__(
        self,
        client: ZooKeeperClient,
        layout: Layout,
        seconds: float,
        tell: Callable[[Sequence[Step]], CreateNode | None],
        done: Callable[[str | None, Sequence[str]], None],
    ) -> None:
        """``tell`` gives the operation that tells other processes of changes. ``done`` is called
        after each multi, with the node that this has created and the paths that were changed. Who
        has asked for these may be gone by then.
        """
        self._client = client
        self._layout = layout
        self._seconds = seconds
        self._tell = tell
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._queue: list[_Commit] = []
        self._task: asyncio.Task[None] | None = None
        self._parts: dict[int, Part] = {}
        self._known: set[str] = set()
        self._closed = False

    async def write(self, wanted: Sequence[Wanted]) -> list[int]:
        """Make changes; the errors are those of ``MetadataStore.commit``."""
        if self._closed:  # a task that is about to end would not take it
            raise _closed()
        nodes = [self._layout.node(each.path) for each in wanted]
        commit = _Commit(wanted, nodes, self._loop.time() + self._seconds)
        self._queue.append(commit)
        if self._task is None or self._task.done():
            self._task = unattended(self._write_all(), "writing to ZooKeeper")
        return await commit.future

    def close(self) -> None:
        """Write nothing more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        _refuse(self._queue, _closed())

    # -- facts ---

    def seen(self, node: str) -> Callable[[Node | None, int], None] | None:
        """Call before a node is read, and what this returns afterwards with what was found."""
        part = self._parts.get(part_of(node))
        if part is None:
            return None
        version = part.version

        def found(read: Node | None, base: int) -> None:
            if part.version == version and self._parts.get(part_of(node)) is part:
                part.learn(node, _fact(read, base))

        return found

    async def _load(self, commits: Sequence[_Commit]) -> dict[str, BaseException]:
        """Learn all facts that commits need; returns the nodes that cannot be read."""
        missing_parts: dict[int, None] = {}
        missing: dict[str, str] = {}
        for commit in commits:
            for node, wanted in zip(commit.nodes, commit.wanted, strict=True):
                part = self._parts.get(part_of(node))
                if part is None:
                    missing_parts[part_of(node)] = None
                if commit.fresh or (
                    (part is None or node not in part.facts) and not _expects_nothing(wanted)
                ):
                    missing[node] = wanted.path
        failed: dict[str, BaseException] = {}
        if missing or missing_parts:
            # In this order: facts are read after their part, and what is fresh after the sync.
            first = [self._client.sync()] if any(commit.fresh for commit in commits) else []
            first += [self._read_part(part) for part in missing_parts]
            nodes = [self._read(*each) for each in missing.items()]
            results = await asyncio.gather(*first, *nodes, return_exceptions=True)
            for result in results[: len(first)]:
                if isinstance(result, BaseException):
                    raise result
            for node, found in zip(missing, results[len(first) :], strict=True):
                if isinstance(found, BaseException):
                    failed[node] = found
                else:
                    assert found is not None
                    self._parts[part_of(node)].learn(node, found)
        await self._find_parents(
            {
                node.rpartition("/")[0]
                for commit in commits
                for node in commit.nodes
                if isinstance(self._parts[part_of(node)].facts.get(node, NoNode()), NoNode)
            }
        )
        return failed

    async def _find_parents(self, parents: set[str]) -> None:
        """Find out which parents exist: one that is created in vain fails the whole multi."""
        while unknown := [parent for parent in parents if parent not in self._known]:
            found = await asyncio.gather(*map(self._client.get, unknown))
            parents = set()
            for parent, node in zip(unknown, found, strict=True):
                if node is not None:
                    self._know(parent)
                else:
                    parents.add(parent.rpartition("/")[0])

    async def _read_part(self, part: int) -> None:
        found = await self._client.get(part_node(part))
        if found is None:
            raise MetadataError("ZooKeeper has lost a part of the metadata store")
        self._parts[part] = Part(found.version, int(found.data))

    async def _read(self, node: str, path: str) -> Fact:
        found = await self._client.get(node)
        stored = None if found is None else decode(path, found.data)
        return _fact(found, 0 if stored is None else stored.base)

    # -- writing ---

    async def _write_all(self) -> None:
        await asyncio.sleep(0)  # the rest of this turn
        while batch := self._take():
            try:
                await self._write(batch)
            except MetadataRefusedError as error:
                _refuse(batch, error)
            except MetadataError as error:
                _refuse(batch, MetadataRefusedError(f"{error}; nothing was written"))
            except Exception:  # a defect; those that come next must not wait for ever
                log.exception("a write to ZooKeeper has failed")
                self._parts.clear()  # whether they are still so is not known
                self._known.clear()
                _refuse(batch, OutcomeUnknownError("the write has failed"))
            except BaseException:
                _refuse(batch, OutcomeUnknownError("the write was interrupted"))
                raise

    def _take(self) -> list[_Commit]:
        """The commits of the next multi: in order, each path in one of them, but for checks.

        A node does not go in the multi in which one below it comes, even if only to see that it is
        not there: each is refused for the sake of the other, whatever is read again.
        """
        taken: list[_Commit] = []
        rest: list[_Commit] = []
        written: set[str] = set()
        checked: dict[str, int] = {}
        nodes: list[str] = []
        gone: list[str] = []
        changes = size = 0
        for place, commit in enumerate(self._queue):
            if commit.future.done():
                continue
            if taken and (
                changes + len(commit.wanted) > CHANGES_AT_ONCE or size + commit.size > BYTES_AT_ONCE
            ):
                rest += self._queue[place:]
                break
            going = commit.going()
            if any(_meets(each, written, checked) for each in commit.wanted) or (
                _any_below(nodes, going) or _any_below(commit.nodes, gone)
            ):
                rest.append(commit)
            else:
                taken.append(commit)
                nodes += commit.nodes
                gone += going
                changes += len(commit.wanted)
                size += commit.size
            for each in commit.wanted:
                if isinstance(each, Check):
                    checked.setdefault(each.path, each.expected_version)
                else:
                    written.add(each.path)
        self._queue = rest
        return taken

    async def _write(self, batch: list[_Commit]) -> None:
        while batch := [commit for commit in batch if not self._is_over(commit)]:
            failed = await self._load(batch)
            plan, planned = self._plan(batch, failed)
            if any(not commit.future.done() and commit not in planned for commit in batch):
                continue  # these need fresh facts
            if not planned:
                return
            steps = [step for each in planned.values() for step in each]
            told = self._tell(steps)
            operations, start = plan.finish(told)
            try:
                results = await self._client.multi(operations)
            except NodeError as error:
                self._learn_from(error, start, plan, list(planned))
                continue
            except OutcomeUnknownError as error:
                for step in steps:
                    self._parts[part_of(step.node)].facts.pop(step.node, None)
                _refuse(planned, error)
                return
            self._made(plan, results[:start])
            for commit, each in planned.items():
                versions = versions_of(each, results, start)
                self._learn(each, versions)
                if not commit.future.done():
                    commit.future.set_result(versions)
            changed = [step.wanted.path for step in steps if isinstance(step.wanted, Put | Delete)]
            self._done(None if told is None else str(results[-1]), changed)
            return

    def _is_over(self, commit: _Commit) -> bool:
        if not commit.future.done() and commit.deadline < self._loop.time():
            trouble = f"ZooKeeper has not answered for {self._seconds:g} s; nothing was written"
            commit.future.set_exception(MetadataRefusedError(trouble))
        return commit.future.done()

    def _plan(
        self, batch: list[_Commit], failed: dict[str, BaseException]
    ) -> tuple[Plan, dict[_Commit, list[Step]]]:
        plan = Plan(self._client.session_id, self._parts, self._known)
        planned: dict[_Commit, list[Step]] = {}
        for commit in batch:
            error = next((failed[node] for node in commit.nodes if node in failed), None)
            if error is not None:
                if not isinstance(error, CorruptMetadataError):
                    error = MetadataRefusedError(f"{error}; nothing was written")
                _refuse((commit,), error)
                continue
            try:
                planned[commit] = plan.add(commit.wanted, commit.nodes, fresh=commit.fresh)
            except NeedsFreshError:
                commit.fresh = True
            except MetadataRefusedError as refused:
                _refuse((commit,), refused)
        return plan, planned

    def _learn_from(self, error: NodeError, start: int, plan: Plan, commits: list[_Commit]) -> None:
        """Give up what the refusal of a multi has disproved."""
        if error.index < start:
            del self._parts[plan.all_parts[error.index]]
            return
        if isinstance(error, NodeExistsError) and error.path in plan.made:
            self._know(error.path)  # another process has made it
            return
        if isinstance(error, NoNodeError):
            above = error.path
            while above := above.rpartition("/")[0]:
                self._known.discard(above)
        concerned = [commit for commit in commits if error.path in commit.nodes]
        for commit in concerned or commits:
            commit.fresh = True
            if isinstance(error, EphemeralParentError):
                _refuse((commit,), MetadataRefusedError(str(error)))

    def _made(self, plan: Plan, results: Sequence[Result]) -> None:
        for part, version in zip(plan.all_parts, results, strict=True):
            if version is not None:
                known = self._parts[part]
                known.version = int(version)
                known.floor = max(known.floor, plan.floors[part])
        for node in plan.kept:
            self._know(node)

    def _learn(self, steps: Sequence[Step], versions: Sequence[int]) -> None:
        for step, version in zip(steps, versions, strict=True):
            after = step.after
            if after is None:
                continue
            if isinstance(after, NoNode):
                self._known.discard(step.node)
            elif isinstance(after, Valued):
                after = replace(after, version=version - after.base)
            self._parts[part_of(step.node)].learn(step.node, after)

    def _know(self, node: str) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known.add(node)


def _closed() -> MetadataRefusedError:
    return MetadataRefusedError("the metadata store is closed")


def _fact(found: Node | None, base: int) -> Fact:
    if found is None:
        return NoNode()
    if not found.data:
        return Parent(found.version, found.children)
    return Valued(base, found.version, found.owner, found.children)


def _expects_nothing(wanted: Wanted) -> bool:
    """Whether ZooKeeper itself will say if there is a node, so that nobody needs to look."""
    return isinstance(wanted, Put | Check) and wanted.expected_version == ABSENT


def _any_below(nodes: Iterable[str], parents: Iterable[str]) -> bool:
    return any(node.startswith(f"{parent}/") for parent in parents for node in nodes)


def _meets(wanted: Wanted, written: set[str], checked: dict[str, int]) -> bool:
    if isinstance(wanted, Check):
        return wanted.path in written or (
            checked.get(wanted.path, wanted.expected_version) != wanted.expected_version
        )
    return wanted.path in written or wanted.path in checked


def _refuse(commits: Iterable[_Commit], error: BaseException) -> None:
    for commit in commits:
        if not commit.future.done():
            commit.future.set_exception(error)
