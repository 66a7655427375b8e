"""``python -m examples.flights``: publish a year of flights while Spark aggregates them."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.flights import flights as data
from examples.flights.process import StandaloneProcess, free
from examples.flights.query import RunningQuery, delays_by_day, start_spark
from examples.flights.show import carriers_table, compare
from pulsark.datasource.session import require_java
from pulsark.errors import PulsarkError
from pulsark.runtime import SystemClock

TOPIC = "flights"
PARTITIONS = 4
STANDARD_PORTS = (6650, 8080, 8815)
KEPT_DIRECTORY = Path("data") / "demo"
LOOK_SECONDS = 0.3
QUERY_SECONDS = 240.0
"""Longer than the whole demo takes on two cores: something hangs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if Spark's answer matches pandas', 1 if not, 2 if the demo could not run."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave the standalone and its data for a closer look"
    )
    parser.add_argument("--flights", type=int, metavar="N", help="publish only the first N flights")
    parser.add_argument(
        "--brokers", type=int, default=1, metavar="N", help="let N processes serve the topic"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="have ZooKeeper and three bookies of BookKeeper, too"
    )
    chosen = parser.parse_args(arguments)
    console = Console()
    _stop_politely()
    try:
        return run(
            console,
            keep=chosen.keep,
            limit=chosen.flights,
            brokers=chosen.brokers,
            cluster=chosen.cluster,
        )
    except PulsarkError as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130


_interrupted = threading.Event()


def _stop_politely() -> None:
    """Note SIGINT and SIGTERM for the next look at the query; the second one counts at once.

    An exception in the middle of a call to the JVM would leave that connection useless for
    stopping it.
    """

    def note(signum: int, frame: object) -> None:
        if _interrupted.is_set():
            raise KeyboardInterrupt
        _interrupted.set()

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)


def _look() -> None:
    """Wait until it is time to look at the query again; ``KeyboardInterrupt`` if asked to stop."""
    if _interrupted.wait(LOOK_SECONDS):
        raise KeyboardInterrupt


def run(
    console: Console, *, keep: bool, limit: int | None, brokers: int = 1, cluster: bool = False
) -> int:
    """The demo from start to end; the exit code."""
    began = SystemClock.monotonic()
    require_java()
    with _directory(keep) as directory:
        console.print("Reading the flights of 2013 ...")
        frame = data.read_flights()
        frame = frame if limit is None else frame.head(limit)
        ports = STANDARD_PORTS if keep and free(STANDARD_PORTS) else (0, 0, 0)
        kind = "cluster" if cluster else "standalone"
        with StandaloneProcess(directory / kind, ports, brokers, cluster=cluster) as broker:
            console.print(f"Pulsark {kind} serves {broker.service_url} and {broker.admin_url}")
            _create_topic(broker.admin_url)
            found = _stream(console, directory, broker, frame)
            console.print(carriers_table(found, data.carrier_names()))
            same = compare(console, found, data.expected_answer(frame))
            console.print(f"Took {SystemClock.monotonic() - began:.0f} s.")
            _look_next(console, broker, directory, keep=keep)
            if keep:
                broker.keep()
    return 0 if same else 1


@contextlib.contextmanager
def _directory(keep: bool) -> Iterator[Path]:
    if not keep:
        with tempfile.TemporaryDirectory(prefix="pulsark-demo-") as path:
            yield Path(path)
        return
    if KEPT_DIRECTORY.exists():
        raise PulsarkError(
            f"{KEPT_DIRECTORY} is there from an earlier demo: stop its standalone if it runs, "
            "and remove the directory"
        )
    KEPT_DIRECTORY.mkdir(parents=True)
    yield KEPT_DIRECTORY.absolute()


def _create_topic(admin_url: str) -> None:
    request = urllib.request.Request(
        f"{admin_url}/admin/v2/persistent/public/default/{TOPIC}/partitions",
        json.dumps(PARTITIONS).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def _stream(
    console: Console, directory: Path, broker: StandaloneProcess, frame: Any
) -> data.Answer:
    """Publish and aggregate at the same time; the query's result."""
    with console.status("Starting Spark ..."):
        spark = start_spark(directory, directory / "spark.log")
    _stop_politely()  # again, because Spark has put its own handler there
    try:
        query = RunningQuery(
            delays_by_day(spark, broker.service_url, broker.admin_url, TOPIC),
            directory / "checkpoint",
        )
        publisher = _Publisher(broker.service_url, frame)
        publisher.start()
        _follow(console, publisher, query, len(frame))
        return query.finish()
    finally:
        spark.stop()


class _Publisher(threading.Thread):
    """Publishes in the background."""

    def __init__(self, service_url: str, frame: Any) -> None:
        super().__init__(name="publisher", daemon=True)
        self._service_url = service_url
        self._frame = frame
        self.sent = 0
        self.error: Exception | None = None

    def run(self) -> None:
        """Send everything; ``error`` holds what went wrong."""
        try:
            data.publish_flights(self._service_url, TOPIC, self._frame, self._note)
        except Exception as error:  # handed to the main thread, which raises it
            self.error = error

    def _note(self, sent: int) -> None:
        self.sent = sent


def _follow(console: Console, publisher: _Publisher, query: RunningQuery, total: int) -> None:
    """Show both sides until all flights have been published and aggregated."""
    columns = (
        TextColumn("{task.description:22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    deadline = SystemClock.monotonic() + QUERY_SECONDS
    with Progress(*columns, console=console) as progress:
        published = progress.add_task("published", total=total)
        aggregated = progress.add_task("aggregated by Spark", total=total)
        rows = 0
        while rows < total:
            _look()
            if publisher.error is not None:
                raise publisher.error
            rows = query.rows()
            progress.update(published, completed=publisher.sent)
            progress.update(aggregated, completed=rows)
            if SystemClock.monotonic() > deadline:
                raise PulsarkError(f"after {QUERY_SECONDS:g} s only {rows:,} flights had come")
        progress.update(published, completed=publisher.sent)
    publisher.join()


def _look_next(console: Console, broker: StandaloneProcess, directory: Path, *, keep: bool) -> None:
    print_ = console.print
    print_("\nWhat to look at next:")
    admin = service = ""
    where = f'topic="{TOPIC}"'
    if keep:
        admin, service = f"--admin-url {broker.admin_url}", f"--service-url {broker.service_url}"
        where = f'adminUrl="{broker.admin_url}", {where}'
    else:
        print_("  make demo DEMO_ARGS=--keep    the same, and its standalone stays for these:")
    pulsark, python = _command("pulsark"), _command("python")
    session = 'import pulsark; pulsark.session().read.format("pulsark")'
    for line in (
        f"  {pulsark} topics stats {TOPIC} {admin}",
        f"  {pulsark} consume {TOPIC} --position earliest -n 3 {service}",
        f"  {python} -c '{session}.load({where}).show()'",
        "  docs/spark.md                 options, columns and guarantees in Spark",
    ):
        print_(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
    if keep:
        print_(
            f"The standalone runs on as process {broker.pid} over {directory}; "
            f"stop it with: kill {broker.pid}",
            highlight=False,
            soft_wrap=True,
        )


def _command(name: str) -> str:
    """How to call a program of this environment from here."""
    mine = Path(sys.executable).parent / name
    if shutil.which(name) == str(mine) or not mine.exists():
        return name
    here = Path.cwd()
    return str(mine.relative_to(here) if mine.is_relative_to(here) else mine)


if __name__ == "__main__":
    sys.exit(main())
