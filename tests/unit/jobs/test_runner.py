"""A job as a program: exit codes, the last line, and what goes where."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from pulsark.cli.jobs import list_jobs, run_job
from pulsark.jobs.job import AtBroker, Context, Help, Job, JobError, Repeated
from pulsark.jobs.progress import ProgressLine
from pulsark.jobs.runner import run_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(AtBroker):
    count: Annotated[int, Help("how many")] = 1


def made(run: Callable[[Wanted], Mapping[str, Any]]) -> Job[Wanted]:
    return Job("made", "Made for tests.", Wanted, lambda wanted, _: run(wanted))


def ended(capsys: pytest.CaptureFixture[str], job: Job[Any], *words: str) -> tuple[Any, ...]:
    code = run_program(job, words)
    said = capsys.readouterr()
    return code, [json.loads(line) for line in said.out.splitlines()], said.err


def failing(error: BaseException) -> Job[Wanted]:
    def run(wanted: Wanted) -> Mapping[str, Any]:
        raise error

    return made(run)


def test_done(capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,), err = ended(capsys, made(lambda w: {"rows": w.count}), "--count", "7")
    assert (code, line["status"], line["job"], line["rows"], err) == (0, "done", "made", 7, "")
    assert line["seconds"] >= 0


def test_failed(capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,), err = ended(capsys, failing(JobError("no\nluck")))
    assert (code, line["status"], line["error"]) == (1, "failed", "no luck")
    assert err == "made: no luck\n"


def test_a_bug_keeps_its_trace_and_the_last_line_comes_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, (line,), err = ended(capsys, failing(ZeroDivisionError("by zero")))
    assert (code, line["error"]) == (1, "by zero")
    assert "Traceback" in err


def test_an_error_out_of_spark_is_its_own_first_words(capsys: pytest.CaptureFixture[str]) -> None:
    kind = type("StreamingQueryException", (Exception,), {"__module__": "pyspark.errors.x"})
    error = kind("[STREAM_FAILED] ended\n  at java\npulsark: topic t does not exist\n  at more")
    code, (line,), err = ended(capsys, failing(error))
    assert (code, line["error"]) == (1, "topic t does not exist")
    assert "Traceback" not in err
    _, (line,), _ = ended(capsys, failing(kind("\n[X] first\n at y")))
    assert line["error"] == "[X] first"


def test_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,), _ = ended(capsys, failing(KeyboardInterrupt()))
    assert (code, line["status"]) == (130, "stopped")


def test_wrong_usage_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, err = ended(capsys, failing(AssertionError()), "--cuont", "7")
    assert (code, lines) == (2, [])
    assert "did you mean --count?" in err


def test_as_a_service_it_runs_again_also_after_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs: list[str] = []

    def run(wanted: Repeated, context: Context) -> Mapping[str, Any]:
        runs.append("run")
        if len(runs) == 1:
            raise JobError("broker away")
        if len(runs) == 3:
            raise KeyboardInterrupt
        return {}

    job = Job("service", "Again and again.", Repeated, run)
    code, lines, _ = ended(capsys, job, "--every", "0.001")
    assert code == 130
    assert [line["status"] for line in lines] == ["failed", "done", "stopped"]


def test_jobs_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job("topic-to-delta", ["--tabel", "x"]) == 2
    assert "did you mean --table?" in capsys.readouterr().err
    assert run_job("topic-to-deta", []) == 2
    assert "did you mean topic_to_delta?" in capsys.readouterr().err
    list_jobs(as_json=True)
    assert "topic_to_delta" in [item["job"] for item in json.loads(capsys.readouterr().out)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Still:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 0


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere() -> None:
    out, clock = Terminal(), Still()
    progress = ProgressLine(out, clock)
    progress.show("reading", 1, 4)
    progress.show("reading", 2, 4)  # too soon to be seen
    clock.now = 1.0
    progress.show("reading", 4, 4)
    progress.close()
    assert out.getvalue() == (
        "\rreading 1 of 4 (25 %)\rreading 4 of 4 (100 %)\r                      \r"
    )
    nowhere = io.StringIO()
    ProgressLine(nowhere, clock).show("reading", 4, 4)
    assert nowhere.getvalue() == ""
