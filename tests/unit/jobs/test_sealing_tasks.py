"""The tasks of the sealing job: what they are, and what their answers come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsark.jobs.sealing_tasks import Task, Written, outcome, packed, tasks_of
from pulsark.storage.table.record import DataFile

TASK = Task("t", "/r1", "t-partition-0", "id", "grpc://b", 0, 5, 0, 9, 100, "a", 1000, "{}")


def file(ledger_id: int, first: int, last: int, crc: int = 1) -> DataFile:
    path = f"partition=0/ledger_id={ledger_id}/part-{first}.parquet"
    return DataFile(path, 0, ledger_id, first, last, last - first + 1, 10, crc, {})


def written(
    root: str, ledger_id: int, first: int, last: int, *, problem: str = "", crc: int = 1
) -> Written:
    task = replace(TASK, root=root, ledger_id=ledger_id, first=first, last=last)
    files = () if problem else (file(ledger_id, first, last, crc),)
    return Written(task, files, problem)


def test_a_task_for_each_root_and_range() -> None:
    planned = {
        "name": "t-partition-0",
        "topicId": "id",
        "partition": 0,
        "ledgerId": 5,
        "first": 0,
        "last": 9,
        "size": 100,
        "attempt": "a",
    }
    table = {"topic": "t", "roots": ["/r1", "/r2"], "targetFileBytes": 1000, "values": "{}"}
    plan = {
        "flightUrl": "grpc://b",
        "tables": [{**table, "ranges": [planned, {**planned, "first": 10, "last": 19}]}],
    }
    tasks = tasks_of(plan)
    assert [(task.root, task.first) for task in tasks] == [
        ("/r1", 0),
        ("/r2", 0),
        ("/r1", 10),
        ("/r2", 10),
    ]
    assert tasks[0] == TASK


def test_a_hundred_thousand_nearly_empty_topics_are_a_few_partitions_of_one_job() -> None:
    tasks = [
        replace(TASK, topic=f"t{i}", root=f"{root}/public/default/{i}", size=1000)
        for i in range(100_000)
        for root in ("/r1", "/r2")
    ]
    bins = packed(tasks, 64 << 20)
    assert len(bins) == 4
    assert all(len({task.storage_root for task in some}) == 1 for some in bins)
    assert sum(map(len, bins)) == len(tasks)
    assert [len(b) for b in packed([replace(TASK, size=100), replace(TASK, size=60)], 100)] == [
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("answers", "needed", "files", "problems"),
    [
        ([written("/a", 5, 0, 4), written("/b", 5, 0, 4)], 2, [(5, 0)], 0),
        ([written("/a", 5, 0, 4), written("/b", 5, 0, 4, problem="full")], 1, [(5, 0)], 1),
        ([written("/a", 5, 0, 4), written("/b", 5, 0, 4, problem="full")], 2, [], 1),
        ([written("/a", 5, 0, 4), written("/b", 5, 0, 4, crc=2)], 1, [], 1),
        (
            [
                written("/a", 5, 0, 4),
                written("/a", 5, 5, 9, problem="gone"),
                written("/a", 5, 10, 14),
                written("/a", 7, 0, 4),
            ],
            1,
            [(5, 0), (7, 0)],
            1,
        ),
    ],
)
def test_what_can_be_attached(
    answers: list[Written], needed: int, files: list[tuple[int, int]], problems: int
) -> None:
    found = outcome(answers, needed)
    assert [(f.ledger_id, f.first_entry_id) for f in found.files] == files
    assert len(found.problems) == problems
