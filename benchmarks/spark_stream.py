"""How soon and how fast a Spark stream has messages: ``python -m benchmarks.spark_stream``.

``micro-batches``: messages at a steady rate, from when each was due until a sink in Python has it,
beside a Python source that makes its rows out of nothing; same session, same sink, in turns.
``sustained``: 100,000 messages a second of 100 bytes from the Java client, whether a stream with
all columns keeps up on the same two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.goals import Goal, add_check, add_scenarios, exit_code
from benchmarks.load import LoadClient
from benchmarks.spark_read import VALUE_BYTES, local_session
from benchmarks.stream_parts import ClockSink, IdleSource
from benchmarks.usage import Spent
from examples.flights.process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

OF_IDLE = 1.5
MICRO_BATCH_RATE = 1000.0
SUSTAINED_RATE = 100_000.0
REACHED = 0.98
"""A client that publishes at less of the rate that it was told has not kept up itself."""
BEHIND_SECONDS = 3.0
"""A stream that is so far behind after the last message had a backlog that grew."""
WARM_SECONDS = 10.0
BEGUN_SECONDS = 60.0
DRAIN_SECONDS = 120.0


class Run:
    """A broker, a client and a session."""

    def __init__(self, arguments: argparse.Namespace, home: Path) -> None:
        self.arguments = arguments
        self.home = home
        self.broker = StandaloneProcess(home / "data")
        self.load = LoadClient()
        self.broker.start()
        self.spark: SparkSession = local_session(
            "spark-stream",
            arguments.cores,
            {"spark.sql.streaming.numRecentProgressUpdates": "10000"},
        )
        self.spark.dataSource.register(IdleSource)
        self.spark.dataSource.register(ClockSink)
        self._number = 0

    def close(self) -> None:
        """Stop everything."""
        self.spark.stop()
        self.load.close()
        self.broker.stop()

    def name(self) -> str:
        """For a topic, a file or a checkpoint: one that was not there before."""
        self._number += 1
        return f"run-{self._number}"

    def topic(self) -> str:
        """A topic with one message."""
        topic = f"persistent://public/default/{self.name()}"
        url, size = self.broker.service_url, VALUE_BYTES
        self.load.call("steady", url=url, topic=topic, size=size, rate=1, seconds=1, batching=False)
        return topic

    def publish(self, topic: str, rate: float, seconds: float, *, batching: bool) -> float:
        """Messages a second that the client published."""
        answer = self.load.call(
            "steady",
            url=self.broker.service_url,
            topic=topic,
            size=VALUE_BYTES,
            rate=rate,
            seconds=seconds,
            batching=batching,
        )
        return answer["messages"] / answer["seconds"]

    def stream(self, topic: str, columns: str = "") -> DataFrame:
        """A topic as a stream, from its first message on."""
        reader = self.spark.readStream.format("pulsark").options(
            serviceUrl=self.broker.service_url,
            adminUrl=self.broker.admin_url,
            topic=topic,
            subscription="spark",
            startingOffsets="earliest",
            **({"columns": columns} if columns else {}),
        )
        return reader.load()

    def begun(self, frame: DataFrame, sink: str, **options: str) -> StreamingQuery:
        """A query with the default trigger that has finished a batch."""
        checkpoint = str(self.home / self.name())
        writer = frame.writeStream.format(sink).option("checkpointLocation", checkpoint)
        query = writer.options(**options).start()
        deadline = time.monotonic() + BEGUN_SECONDS
        while not _rows(query):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the query has no row after {BEGUN_SECONDS:.0f} s")
            time.sleep(0.05)
        return query


def micro_batches(run: Run) -> list[Goal]:
    """Ages at the sink, ours and those of the idle source."""
    found: dict[str, list[float]] = {"pulsark": [], "idle source": []}
    for number in range(run.arguments.rounds):
        for name in found:
            ages, batches = _ages(run, name)
            p50, p99 = statistics.median(ages), statistics.quantiles(ages, n=100)[98]
            print(
                f"{name:12} p50 {p50 * 1e3:>6.0f} ms  p99 {p99 * 1e3:>6.0f} ms  {len(ages)} rows; "
                f"p50 of batches: {_durations(batches)}" + ("  (warm-up)" if number == 0 else ""),
                flush=True,
            )
            if number:
                found[name].append(p50)
    ours, idle = (statistics.median(each) for each in found.values())
    return [Goal("publish to sink p50, of an idle source", ours / idle, "at most", OF_IDLE)]


def _ages(run: Run, name: str) -> tuple[list[float], list[dict[str, Any]]]:
    seconds, rate = run.arguments.seconds, MICRO_BATCH_RATE
    file = run.home / run.name()
    if name == "idle source":
        reader = run.spark.readStream.format("idle").options(rate=rate, size=VALUE_BYTES)
        query = run.begun(reader.load(), "clock", file=str(file))
        time.sleep(WARM_SECONDS + seconds)
    else:
        topic = run.topic()
        query = run.begun(run.stream(topic, "event_time,value"), "clock", file=str(file))
        run.publish(topic, rate, WARM_SECONDS + seconds, batching=False)
        time.sleep(1.0)
    progress = [json.loads(each.json) for each in query.recentProgress]
    query.stop()
    ages = [age for line in file.read_text().splitlines() for age in json.loads(line)["ages"]]
    return ages[int(WARM_SECONDS * rate) :], progress[len(progress) // 2 :]


def _durations(batches: list[dict[str, Any]]) -> str:
    """What a batch spends its time with, the median of each in ms."""
    parts: dict[str, list[float]] = {}
    for batch in batches:
        if batch["numInputRows"]:
            for part, ms in batch["durationMs"].items():
                parts.setdefault(part, []).append(ms)
    medians = {part: statistics.median(values) for part, values in parts.items()}
    return ", ".join(
        f"{part} {ms:.0f}" for part, ms in sorted(medians.items(), key=lambda p: -p[1])
    )


def sustained(run: Run) -> list[Goal]:
    """How far the stream is behind when the last of many messages was published."""
    seconds = run.arguments.sustained_seconds
    topic = run.topic()
    query = run.begun(run.stream(topic), "noop")
    run.publish(topic, SUSTAINED_RATE, WARM_SECONDS, batching=True)
    before = _rows(query)
    spent = Spent()
    rate = run.publish(topic, SUSTAINED_RATE, seconds, batching=True)
    ended = time.monotonic()
    cores = spent.seconds() / seconds
    # Each command publishes one message first, and the topic began with two.
    wanted = int(SUSTAINED_RATE * WARM_SECONDS) + int(SUSTAINED_RATE * seconds) + 4
    while _rows(query) < wanted:
        if time.monotonic() - ended > DRAIN_SECONDS:
            break
        time.sleep(0.02)
    behind = time.monotonic() - ended
    batches = [json.loads(each.json) for each in query.recentProgress]
    query.stop()
    sizes = [batch["numInputRows"] for batch in batches if batch["numInputRows"]]
    print(
        f"sustained: published {rate:,.0f} messages/s for {seconds:.0f} s, {before:,} rows before; "
        f"batches of {statistics.median(sizes):,.0f} rows, at most {max(sizes):,}, in "
        f"{_durations(batches)} ms; {cores:.2f} cores",
        flush=True,
    )
    return [
        Goal("sustained, messages/s", rate, "at least", SUSTAINED_RATE * REACHED),
        Goal("sustained, s behind the last message", behind, "at most", BEHIND_SECONDS),
        Goal("sustained, cores of all processes", cores, "at most", float(run.arguments.cores)),
    ]


def _rows(query: StreamingQuery) -> int:
    error = query.exception()
    if error is not None:
        raise error
    return sum(each.numInputRows for each in query.recentProgress)


SCENARIOS = {"micro-batches": micro_batches, "sustained": sustained}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    add_scenarios(parser, SCENARIOS)
    parser.add_argument("--seconds", type=float, default=30.0, help="of micro-batches, a round")
    parser.add_argument("--rounds", type=int, default=4, help="of micro-batches; one to warm up")
    parser.add_argument("--sustained-seconds", type=float, default=60.0)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    add_check(parser)
    chosen = parser.parse_args(arguments)
    goals: list[Goal] = []
    with tempfile.TemporaryDirectory(prefix="pulsark-spark-stream-") as home:
        run = Run(chosen, Path(home))
        try:
            for name in chosen.scenarios:
                goals += SCENARIOS[name](run)
        finally:
            run.close()
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
