"""The tasks of the sealing job: what they are, and what their answers come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pulsark.datasource.options.errors import DataSourceError, UnavailableError
from pulsark.dispatch.tables.sealing_jobs import TABLES_A_PLAN_MAX
from pulsark.errors import StorageError
from pulsark.jobs import seal_ledgers, sealing_tasks
from pulsark.jobs.job import Context
from pulsark.jobs.sealing_tasks import Task, Written, outcome, packed, tasks_of, write
from pulsark.runtime import OsDisk
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.table.files import orphans
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.files.seal import verify
from tests.support.seal_contract import NoSpark
from tests.support.tables import entry

BYTES = ValueSchemas().encode().decode()

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


class ManyTopics:
    """A broker whose topics have one message each, all of them due."""

    def __init__(self, topics: int) -> None:
        self.due = dict.fromkeys(f"t{i}" for i in range(topics))
        self.sealing = self

    def plan(self, *_: Any, **__: Any) -> dict[str, Any]:
        some = list(islice(self.due, TABLES_A_PLAN_MAX))
        planned = {
            "topicId": "id", "partition": -1, "ledgerId": 5, "first": 0, "last": 0, "size": 100,
            "attempt": "a",
        }  # fmt: skip
        tables = [
            {"topic": name, "tableId": "id", "roots": [f"/r1/public/default/{name}"], "values":
             '{"type": "binary"}', "targetFileBytes": 1000, "rootsNeeded": 1,
             "ranges": [{**planned, "name": name}]}
            for name in some
        ]  # fmt: skip
        return {"flightUrl": "", "tables": tables, "more": len(some) == TABLES_A_PLAN_MAX}

    def attach(self, topic: str, *_: Any) -> None:
        del self.due[topic]


def test_a_thousand_nearly_empty_topics_are_one_spark_job_of_one_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def written_all(tasks: list[Task]) -> list[Written]:
        return list(map(written_one, tasks))

    class CountedSpark(NoSpark):
        jobs = 0

        def collect(self) -> list[Any]:
            self.jobs += 1
            return super().collect()

    monkeypatch.setattr(seal_ledgers, "write_all", written_all)
    broker, spark = ManyTopics(5000), CountedSpark()
    context: Any = Context("seal_ledgers", given_spark=spark)  # type: ignore[arg-type]
    monkeypatch.setattr(context, "admin", lambda wanted: broker)
    done = seal_ledgers.run(seal_ledgers.Parameters(), context)
    assert done == {"tables": 5000, "tasks": 5, "files": 5000, "rows": 5000}
    assert spark.jobs == 5
    assert not broker.due


def test_a_table_that_takes_no_files_keeps_no_other_one_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WithOneTrimmed(ManyTopics):
        def attach(self, topic: str, *given: Any) -> None:
            if topic == "t1":
                raise DataSourceError("the broker answered 412: partition -1 has 0 entries there")
            super().attach(topic, *given)

    monkeypatch.setattr(seal_ledgers, "write_all", lambda tasks: [written_one(t) for t in tasks])
    broker = WithOneTrimmed(4)
    context: Any = Context("seal_ledgers", given_spark=NoSpark())  # type: ignore[arg-type]
    monkeypatch.setattr(context, "admin", lambda wanted: broker)
    done = seal_ledgers.run(seal_ledgers.Parameters(), context)
    assert list(broker.due) == ["t1"]
    assert done["files"] == 3
    (problem,) = done["problems"]
    assert problem.startswith("t1: ")
    assert "412" in problem


def written_one(task: Task) -> Written:
    return Written(task, (file(5, 0, 0),))


def test_a_broker_that_is_gone_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(ManyTopics):
        asked = 0

        def attach(self, topic: str, *given: Any) -> None:
            self.asked += 1
            raise UnavailableError("no answer")

    monkeypatch.setattr(seal_ledgers, "write_all", lambda tasks: [written_one(t) for t in tasks])
    broker = Gone(4)
    context: Any = Context("seal_ledgers", given_spark=NoSpark())  # type: ignore[arg-type]
    monkeypatch.setattr(context, "admin", lambda wanted: broker)
    with pytest.raises(UnavailableError):
        seal_ledgers.run(seal_ledgers.Parameters(), context)
    assert broker.asked == 1


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


def test_a_task_that_spark_does_again_takes_nothing_away_from_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that Spark took for dead may come to a task when its files are attached."""
    task = replace(TASK, root=str(tmp_path), attempt=orphans.nonce(1, 2), values=BYTES)
    broken = False

    def entries_of(task: Task) -> Iterator[tuple[int, bytes]]:
        assert not broken or (tmp_path / attached.path).exists()
        yield 0, entry(0)
        if broken:
            raise StorageError("the broker does not answer")
        yield 1, entry(1)

    monkeypatch.setattr(sealing_tasks, "_entries", entries_of)
    (attached,) = write(task).files
    broken = True
    assert "does not answer" in write(task).problem
    broken = False
    assert write(task).files == (attached,)
    assert [path.name for path in tmp_path.rglob("*.parquet")] == [Path(attached.path).name]
    verify(OsDisk(), str(tmp_path), attached)


def test_a_task_that_finds_another_file_under_its_name_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(TASK, root=str(tmp_path), attempt=orphans.nonce(1, 2), values=BYTES)
    sent = [entry(0)]
    monkeypatch.setattr(sealing_tasks, "_entries", lambda task: enumerate(sent))
    (first,) = write(task).files
    sent.append(entry(1))
    assert "is another file already" in write(task).problem
    verify(OsDisk(), str(tmp_path), first)
