"""Runs the official Python client's own test suite against a standalone, or a local cluster.

::

    git clone --branch v3.13.0 https://github.com/apache/pulsar-client-python FOLDER
    python -m tests.clients.official_suite FOLDER

The suite connects to fixed ports, so nothing else may listen on 6650, 6651, 8080 and 8443. The
standalone is locked as the suite wants it: ``suite_broker.py``.

``official_suite.toml`` lists the tests that may fail, and why. The exit code is 1 when another
test fails, or when the standalone logs an error. A listed test that passes is reported, so that
the list can shrink.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.suite_broker import PORTS, locked_broker

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("suite_worker.py")
EXCEPTIONS = Path(__file__).with_name("official_suite.toml")
LIBRARIES = ROOT / ".cache" / "official-suite"
TEST_SECONDS = 60.0
START_SECONDS = 60.0
"""For a process until its first line, whatever else this machine does."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    test: str
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    detail: str
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """All outcomes, compared with the list of exceptions."""

    unexpected: tuple[str, ...]
    """Failed and not in the list: the run is not good."""
    expected: tuple[str, ...]
    """Failed, and the list says why."""
    recovered: tuple[str, ...]
    """In the list, and passed."""
    unknown: tuple[str, ...]
    """Entries of the list that name no test of the suite."""


def exceptions(path: Path = EXCEPTIONS) -> dict[str, str]:
    """The reason for each test, class or file that may fail."""
    found: dict[str, str] = {}
    for group in tomllib.loads(path.read_text())["exceptions"]:
        for test in group["tests"]:
            if test in found:
                raise ValueError(f"{path.name}: {test} is listed twice")
            found[test] = group["reason"]
    return found


def reason_for(test: str, listed: Mapping[str, str]) -> str | None:
    """Why a test may fail; an entry covers everything under its name."""
    parts = test.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((listed[name] for name in names if name in listed), None)


def judge(outcomes: Sequence[Outcome], listed: Mapping[str, str]) -> Verdict:
    """Compare what happened with what may happen."""
    failed = [o.test for o in outcomes if o.outcome == "failed"]
    passed = [o.test for o in outcomes if o.outcome == "passed"]
    excused = tuple(test for test in failed if reason_for(test, listed))
    return Verdict(
        unexpected=tuple(test for test in failed if test not in excused),
        expected=excused,
        recovered=tuple(test for test in passed if reason_for(test, listed)),
        unknown=tuple(
            name
            for name in listed
            if not any(o.test == name or o.test.startswith(f"{name}.") for o in outcomes)
        ),
    )


class Suite:
    """The suite's files, and processes that run their tests."""

    def __init__(self, folder: Path, log: Path, test_seconds: float) -> None:
        self._folder = folder
        self._log = log
        self._test_seconds = test_seconds
        # Addresses of tests are local; `requests` and urllib obey the environment's proxies.
        hidden = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}
        self._env = {k: v for k, v in os.environ.items() if k.lower() not in hidden}
        self._env["PYTHONPATH"] = str(LIBRARIES)

    def modules(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*_test.py"))

    def tests(self, module: str) -> tuple[list[str], str]:
        """The tests of a file, or the reason why it cannot be imported."""
        with self._process("list", module) as lines:
            for line in lines(START_SECONDS):
                return line.get("tests", []), line.get("error", "")
        return [], "it did not list its tests"

    def run(self, tests: Sequence[str]) -> Iterator[Outcome]:
        """Run tests of one file; one that hangs or ends its process takes no other with it."""
        rest = list(tests)
        while rest:
            running, began = "", time.monotonic()
            with self._process("run", *rest) as lines:
                for line in lines(self._test_seconds):
                    if "begin" in line:
                        running, began = line["begin"], time.monotonic()
                        continue
                    seconds = time.monotonic() - began
                    yield Outcome(line["end"], line["outcome"], line["detail"], seconds)
                    # The end of a class takes its tests with it.
                    ended = (line["end"], f"{line['end']}.")
                    rest = [t for t in rest if t != ended[0] and not t.startswith(ended[1])]
                    running = ""
            if running or rest:
                # A process that ended in peace ran all it could: the others have no result.
                lost = [running] if running else rest
                for test in lost:
                    why = "no end: it hangs, or its process died" if running else "it did not run"
                    yield Outcome(test, "failed", why, time.monotonic() - began)
                rest = [test for test in rest if test not in lost]

    @contextmanager
    def _process(self, *args: str) -> Iterator[Callable[[float], Iterator[dict[str, Any]]]]:
        """A worker; gives its lines until it ends or is silent for the seconds given."""
        read, write = os.pipe()
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(WORKER), str(write), *args],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[write],
            )
        os.close(write)
        try:
            yield lambda silence: _lines(read, silence)
        finally:
            process.kill()
            process.wait()
            os.close(read)


def _lines(descriptor: int, silence: float) -> Iterator[dict[str, Any]]:
    """JSON lines from a pipe, until its end or ``silence`` seconds without any after the first."""
    rest, patience = b"", START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(patience):
            read = os.read(descriptor, 1 << 16)
            if not read:
                return
            patience = silence
            *whole, rest = (rest + read).split(b"\n")
            yield from map(json.loads, whole)


def provide_libraries() -> None:
    """Install what the tests import and the project does not need, once, beside the project."""
    if importlib.util.find_spec("requests") or (LIBRARIES / "requests").exists():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(LIBRARIES), "requests>=2.31,<3"], check=True)


def require_free_ports() -> None:
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                sys.exit(f"port {port} is in use; the suite's tests connect to it: free it first")


def checkout(folder: Path) -> Path:
    """The folder with the tests, given it or the repository."""
    for place in (folder / "tests", folder):
        if (place / "pulsar_test.py").exists():
            return place.resolve()
    sys.exit(f"{folder}: there is no pulsar_test.py; give a checkout of pulsar-client-python")


def run_all(suite: Suite, only: str) -> list[Outcome]:
    """Run every test whose name matches; print each."""
    outcomes: list[Outcome] = []
    for module in suite.modules():
        tests, error = suite.tests(module)
        if error and fnmatch.fnmatch(module, only):
            show(Outcome(module, "failed", error, 0.0), outcomes)
        for outcome in suite.run([test for test in tests if fnmatch.fnmatch(test, only)]):
            show(outcome, outcomes)
    return outcomes


def show(outcome: Outcome, outcomes: list[Outcome]) -> None:
    outcomes.append(outcome)
    print(f"{outcome.outcome:8}{outcome.seconds:6.1f} s  {outcome.test}", flush=True)
    if outcome.outcome != "passed":
        for line in outcome.detail.strip().splitlines()[-6:]:
            print(f"                  | {line}")


def errors_in(log: Path) -> list[str]:
    """What the standalone logged as an error: no request of a client should cause one."""
    return [line for line in log.read_text().splitlines() if re.match(r"\S+ \S+ ERROR ", line)]


def report(
    outcomes: Sequence[Outcome], listed: Mapping[str, str], errors: Sequence[str] = ()
) -> int:
    """Print the summary; the exit code."""
    verdict = judge(outcomes, listed)
    passed = sum(o.outcome == "passed" for o in outcomes)
    skipped = sum(o.outcome == "skipped" for o in outcomes)
    print(f"\n{passed} passed, {skipped} skipped, {len(verdict.expected)} failed as listed in")
    print(f"{EXCEPTIONS.name}, {len(verdict.unexpected)} failed unexpectedly")
    for title, tests in (
        ("failed, and is in no list", verdict.unexpected),
        ("is listed and passes here: look whether it can go from the list", verdict.recovered),
        ("is listed and not in the suite", verdict.unknown),
    ):
        for test in tests:
            print(f"{test}: {title}")
    for line in errors:
        print(f"error in the broker's log: {line}")
    return 1 if verdict.unexpected or errors else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="checkout of apache/pulsar-client-python")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="file.Class.test with *")
    parser.add_argument("--seconds", type=float, default=TEST_SECONDS, help="limit of one test")
    parser.add_argument("--brokers", type=int, default=1, help="processes of brokers")
    told = "against `pulsark cluster`: ZooKeeper, bookies and at least one broker"
    parser.add_argument("--cluster", action="store_true", help=told)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and data here")
    options = parser.parse_args(arguments)
    folder = checkout(options.folder)
    provide_libraries()
    require_free_ports()
    with tempfile.TemporaryDirectory() as scratch:
        work = options.keep or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        with locked_broker(folder, work, options.brokers, cluster=options.cluster) as standalone:
            outcomes = run_all(Suite(folder, work / "suite.log", options.seconds), options.only)
        errors = errors_in(standalone.log_path)
    listed = exceptions()
    if options.only != "*":
        known = {o.test for o in outcomes}
        listed = {name: why for name, why in listed.items() if name in known}
    return report(outcomes, listed, errors)


if __name__ == "__main__":
    sys.exit(main())
