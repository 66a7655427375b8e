"""The tasks of ``seal_ledgers``: how they are planned and run, and how their results are combined.

A task writes a range of entries to one storage root; tasks of one range write the same bytes to
different roots, wherever they run. Small tasks share a partition of the Spark job.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pulsark.admin_client.credentials import Credentials
from pulsark.datasource.plan.plan import Span, Split
from pulsark.datasource.read.entry_stream import read_entries
from pulsark.errors import PulsarkError, StorageError
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.roots.root_files import RootFiles
from pulsark.storage.roots.task_files import task_files
from pulsark.storage.table.files import orphans
from pulsark.storage.table.files.disk_reserve import check_room
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal import seal
from pulsark.storage.table.repair import copy_state
from pulsark.storage.table.root_identity import storage_root_of

PATIENCE_SECONDS: Final = 60.0
"""A broker that restarts meanwhile is waited for."""


@dataclass(frozen=True, slots=True)
class Task:
    """Entries of one ledger for one storage root."""

    topic: str
    """The topic whose table it is."""
    root: str
    """Directory of the table."""
    name: str
    """The partition."""
    topic_id: str
    flight_url: str
    partition: int
    ledger_id: int
    first: int
    last: int
    size: int
    attempt: str
    target_bytes: int
    values: str
    """The schemas of the topic's values, as the plan has them."""

    @property
    def storage_root(self) -> str:
        """The root itself; the table's directory is below it."""
        return storage_root_of(self.root)

    @property
    def range(self) -> tuple[str, int, int]:
        """What is equal for all roots."""
        return self.topic, self.ledger_id, self.first


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task: files, or the reason why there are none."""

    task: Task
    files: tuple[DataFile, ...] = ()
    problem: str = ""


def tasks_of(plan: Mapping[str, Any]) -> list[Task]:
    """The tasks of a broker's plan."""
    return [
        Task(
            table["topic"],
            root,
            planned["name"],
            planned["topicId"],
            planned.get("flightUrl", plan["flightUrl"]),
            planned["partition"],
            planned["ledgerId"],
            planned["first"],
            planned["last"],
            planned["size"],
            planned["attempt"],
            table["targetFileBytes"],
            table["values"],
        )
        for table in plan["tables"]
        for planned in table["ranges"]
        for root in table["roots"]
    ]


def packed(tasks: Iterable[Task], size: int) -> list[list[Task]]:
    """Tasks grouped by storage root, about ``size`` bytes each."""
    bins: list[list[Task]] = []
    room: dict[str, tuple[list[Task], int]] = {}
    for task in sorted(tasks, key=lambda task: -task.size):
        found, used = room.get(task.storage_root, ([], size))
        if used + task.size > size:
            found, used = [], 0
            bins.append(found)
        found.append(task)
        room[task.storage_root] = found, used + task.size
    return bins


def write(task: Task, disk: RootFiles | None = None) -> Written:
    """Read the entries from the broker and write them to the root. Done again, it begins anew.

    Spark does it again if it does not hear of an executor, which may be alive and go on, even when
    the files have been attached. So nobody writes or deletes what has the names of the plan: each
    writes under names of its own, and whole files get the others.
    """
    disk = disk or task_files()
    own = orphans.nonce_like(task.attempt, uuid.uuid4().int)
    try:
        check_room(disk, task.root, task.size)
        files = seal(
            _entries(task),
            task.partition,
            task.ledger_id,
            [task.root],
            disk,
            own,
            target_bytes=task.target_bytes,
            values=ValueSchemas.decode(task.values),
        )
        return Written(task, tuple(_named(task, disk, file, own) for file in files))
    except (PulsarkError, OSError) as error:
        return Written(task, problem=str(error))
    finally:
        with suppress(OSError):  # the broker deletes them later
            orphans.remove_attempt(disk, task.root, task.partition, task.ledger_id, own)


def _named(task: Task, disk: RootFiles, file: DataFile, own: str) -> DataFile:
    """A file under its name in the plan."""
    named = replace(file, path=file.path.replace(f"-{own}-", f"-{task.attempt}-"))
    try:
        disk.link(f"{task.root}/{file.path}", f"{task.root}/{named.path}")
    except FileExistsError:
        if copy_state(disk, task.root, named, verify=True) != "ok":
            raise StorageError(f"{task.root}/{named.path} is another file already") from None
    return named


def write_all(tasks: Iterable[Task]) -> list[Written]:
    """The tasks of one partition of the Spark job."""
    return [write(task) for task in tasks]


def _entries(task: Task) -> Iterator[tuple[int, bytes]]:
    span = Span(task.ledger_id, task.first, task.last, task.size)
    split = Split(task.topic, task.name, task.partition, task.topic_id, task.flight_url, (span,))
    for chunk in read_entries(
        split,
        patience_s=PATIENCE_SECONDS,
        fail_on_data_loss=True,
        find_partition=lambda: None,
        credentials=Credentials.from_environment(os.environ),
    ):
        yield from zip(chunk.entry_ids, chunk.entries, strict=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What can be attached to one table."""

    files: list[DataFile]
    problems: list[str]


def outcome(written: Sequence[Written], roots_needed: int) -> Outcome:
    """The consecutive files of one table that enough roots have.

    They end, in each ledger, before the first range that too few roots have. A later run seals the
    rest.
    """
    ranges: dict[tuple[str, int, int], list[Written]] = {}
    for one in written:
        ranges.setdefault(one.task.range, []).append(one)
    files: list[DataFile] = []
    problems = [f"{one.task.root}: {one.problem}" for one in written if one.problem]
    broken: set[int] = set()
    for key in sorted(ranges):
        ledger_id = key[1]
        copies = [one.files for one in ranges[key] if not one.problem]
        if len(set(map(_digests, copies))) > 1:
            problems.append(f"ledger {ledger_id}: storage roots have different files")
        elif len(copies) >= roots_needed and ledger_id not in broken:
            files += copies[0]
            continue
        broken.add(ledger_id)
    return Outcome(files, problems)


def _digests(files: Sequence[DataFile]) -> tuple[tuple[str, int, int], ...]:
    return tuple((file.path, file.size, file.crc32c) for file in files)
