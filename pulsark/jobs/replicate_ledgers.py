"""Restore files of sealed ledgers that storage roots have lost.

Every root of a table has a complete copy. This job finds files that are missing or damaged on a
root, by their bytes with ``--verify``, and copies them from a root that has them: one Spark task
per root and number of files. A root that was refused because it came back empty counts again when
all its files are there. A root that the broker no longer has is lost for good: its tables get
another root instead, and so do tables with fewer roots than they should have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from pulsark.datasource.options.errors import DataSourceError, UnavailableError
from pulsark.errors import PulsarkError
from pulsark.jobs.job import Context, Help, Job, JobError, Repeated
from pulsark.storage.roots.task_files import task_files
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.root_files import copy_file
from pulsark.storage.table.repair import copy_state
from pulsark.storage.table.root_identity import storage_root_of

if TYPE_CHECKING:
    from pulsark.datasource.admin.client import SparkAdmin

FILES_A_TASK: Final = 500
BYTES_A_TASK: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(Repeated):
    """The parameters of ``replicate_ledgers``."""

    topic: Annotated[tuple[str, ...], Help("a topic to look at; all if left out")] = ()
    verify: Annotated[bool, Help("read every copy, and not only look at its size")] = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A file that should be in a directory, and the directories that may have it."""

    directory: str
    peers: tuple[str, ...]
    file: DataFile
    state: str
    """``ok``, ``missing`` or ``damaged``, if known."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of a copy, and what came of it; ``problem``: it is still not there."""

    copy: Copy
    written: bool = False
    problem: str = ""


def run(wanted: Parameters, context: Context) -> Mapping[str, Any]:
    """Look and repair once; ``JobError`` if a copy could not be made."""
    admin = context.admin(wanted)
    refused: set[str] = set()
    incomplete: set[str] = set()
    copies: list[Copy] = []
    moving: dict[str, list[str]] = {}
    for page in _pages(admin, wanted.topic):
        refused = {root for root, problem in page["roots"].items() if problem}
        copies += copies_of(page)
        for table in page["tables"]:
            if table["wanted"] != table["directories"]:
                moving[table["topic"]] = table["wanted"]
            incomplete |= {
                storage_root_of(directory)
                for directory, state in table["logs"].items()
                if state != "ok" and directory in table["wanted"]
            }
    tasks = packed(c for c in copies if wanted.verify or c.state != "ok")
    context.progress.show("looking at copies", 0, len(tasks))
    results = [result for some in _in_spark(tasks, context) for result in some]
    failed = [result for result in results if result.problem]
    broken = {storage_root_of(result.copy.directory) for result in failed}
    problems = [result.problem for result in failed]
    recovered: list[str] = []
    moved: list[str] = []
    for topic in sorted(moving):
        with _noted(problems):
            admin.sealing.place(topic, moving[topic])
            moved.append(topic)
    for root in sorted((refused | incomplete) - broken) if not wanted.topic else ():
        with _noted(problems):
            admin.sealing.recovered(root)
            recovered.append(root)
    summary = {
        "copies": len(copies),
        "written": sum(result.written for result in results),
        "failed": len(failed),
        "recoveredRoots": recovered,
        "movedTables": len(moved),
    }
    if problems:
        told = f"{len(problems)} copies or roots are still not there: {problems[0]}"
        raise JobError(f"{told} (of {len(copies)} copies, {summary['written']} were written)")
    return summary


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """What the broker refuses becomes a problem of the run, and does not end it."""
    try:
        yield
    except UnavailableError:
        raise  # each table would wait for it
    except DataSourceError as error:
        problems.append(str(error).removeprefix("pulsark: "))


def _pages(admin: SparkAdmin, topics: Sequence[str]) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        page = admin.sealing.copies(topics, after)
        yield page
        after = page["next"]
        if not after:
            return


def copies_of(page: Mapping[str, Any]) -> Iterator[Copy]:
    """All copies that there should be, as the broker told."""
    for table in page["tables"]:
        everywhere = dict.fromkeys((*table["wanted"], *table["directories"]))
        for ledger in table["ledgers"]:
            for directory in table["wanted"]:
                peers = tuple(other for other in everywhere if other != directory)
                for file, state in zip(ledger["files"], ledger["copies"][directory], strict=True):
                    yield Copy(directory, peers, DataFile.from_json(file), state)


def packed(copies: Iterable[Copy]) -> list[list[Copy]]:
    """Copies grouped by storage root, as many as fit one task."""
    tasks: list[list[Copy]] = []
    filling: dict[str, tuple[list[Copy], int]] = {}
    for copy in copies:
        root = storage_root_of(copy.directory)
        task, size = filling.get(root, ([], BYTES_A_TASK))
        if len(task) >= FILES_A_TASK or size >= BYTES_A_TASK:
            task, size = [], 0
            tasks.append(task)
        task.append(copy)
        filling[root] = task, size + copy.file.size
    return tasks


def repair_all(copies: Sequence[Copy]) -> list[Result]:
    """Look at copies, and make those again that are not right. Runs in Spark's workers."""
    return [_repaired(copy) for copy in copies]


def _repaired(copy: Copy) -> Result:
    disk, errors = task_files(), []
    try:
        if copy_state(disk, copy.directory, copy.file, verify=True) == "ok":
            return Result(copy)
    except OSError as error:
        errors.append(str(error))
    for peer in copy.peers:
        try:
            copy_file(disk, peer, copy.directory, copy.file)
        except (PulsarkError, OSError) as error:
            errors.append(f"{peer}: {error}")
        else:
            return Result(copy, written=True)
    where = f"{copy.directory}/{copy.file.path}"
    return Result(copy, problem=f"{where}: {'; '.join(errors) or 'there is no other root'}")


def _in_spark(tasks: Sequence[Sequence[Copy]], context: Context) -> list[list[Result]]:
    if not tasks:
        return []
    found: list[list[Result]] = (
        context.spark.sparkContext.parallelize(tasks, len(tasks)).map(repair_all).collect()
    )
    return found


JOB = Job("replicate_ledgers", "Write again what storage roots have lost.", Parameters, run)
