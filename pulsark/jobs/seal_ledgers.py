"""Move messages from the journal into the tables of their topics.

One Spark job for a thousand topics: a task for each storage root and range of entries, which reads
over Flight and writes Parquet. The broker says what is due, and makes the files part of the topics:
only it commits. A killed run leaves unreferenced files, which are deleted a day later; what it did
not attach is due again.

With ``sealByJobs=true`` the broker leaves all sealing to this job; run it with ``--every``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from pulsark.datasource.options.errors import DataSourceError, UnavailableError
from pulsark.jobs.job import Context, Help, Job, JobError, Repeated, UsageError
from pulsark.jobs.sealing_tasks import Task, Written, outcome, packed, tasks_of, write_all

if TYPE_CHECKING:
    from pulsark.datasource.admin.client import SparkAdmin
    from pulsark.storage.table.files.record import DataFile

FILES_A_REQUEST: Final = 200
"""Files that are attached at once: a description of one takes about 1 KiB of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(Repeated):
    """The parameters of ``seal_ledgers``."""

    topic: Annotated[tuple[str, ...], Help("a topic to seal; all that are in use if left out")] = ()
    everything: Annotated[
        bool, Help("seal all there is, and not only what the policies say is due")
    ] = False
    runner: Annotated[
        str, Help("name of this job: a run takes over what one of the same name had that died")
    ] = "seal_ledgers"
    task_mb: Annotated[int, Help("entries of one Spark task, in MiB; small topics share one")] = 64


def run(wanted: Parameters, context: Context) -> Mapping[str, Any]:
    """Seal once; ``JobError`` if something that was due could not be sealed."""
    if wanted.task_mb < 1:
        raise UsageError(f"--task-mb {wanted.task_mb}: it is at least 1")
    admin = context.admin(wanted)
    size = wanted.task_mb << 20
    total = Counter[str]()
    problems: list[str] = []
    more = True
    while more:  # a plan has a thousand tables at most
        plan = admin.sealing.plan(
            wanted.topic, wanted.runner, everything=wanted.everything, range_bytes=size
        )
        done = _sealed(plan, size, admin, context, problems)
        total.update(done)
        more = plan["more"] and done["files"] > 0
    if problems and not total["files"]:
        raise JobError(f"nothing was sealed: {problems[0]}")
    return dict(total) | ({"problems": problems[:10]} if problems else {})


def _sealed(
    plan: Mapping[str, Any], size: int, admin: SparkAdmin, context: Context, problems: list[str]
) -> dict[str, int]:
    """Do what a plan says by one Spark job; what was done, and ``problems`` gets what was not."""
    bins = packed(tasks_of(plan), size)
    context.progress.show("sealing", 0, len(bins))
    by_topic: dict[str, list[Written]] = {}
    for one in _in_spark(bins, context) if bins else []:
        by_topic.setdefault(one.task.topic, []).append(one)
    files = rows = 0
    for table in plan["tables"]:
        found = outcome(by_topic.get(table["topic"], []), table["rootsNeeded"])
        problems += found.problems
        kind = json.loads(table["values"])["type"]
        for some in _chunks(found.files):
            described = [file.to_json() for file in some]
            try:
                admin.sealing.attach(table["topic"], table["tableId"], described, kind)
            except UnavailableError:
                raise
            except DataSourceError as error:  # others may be attached all the same
                reason = str(error).removeprefix("pulsark: ")
                problems.append(f"{table['topic']}: {reason}")
                break
            files += len(some)
            rows += sum(file.rows for file in some)
    return {"tables": len(plan["tables"]), "tasks": len(bins), "files": files, "rows": rows}


def _in_spark(bins: Sequence[Sequence[Task]], context: Context) -> list[Written]:
    found = context.spark.sparkContext.parallelize(bins, len(bins)).map(write_all).collect()
    return [written for some in found for written in some]


def _chunks(files: Sequence[DataFile]) -> Iterator[Sequence[DataFile]]:
    for start in range(0, len(files), FILES_A_REQUEST):
        yield files[start : start + FILES_A_REQUEST]


JOB = Job("seal_ledgers", "Move messages into the tables of their topics.", Parameters, run)
