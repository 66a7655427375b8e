"""The disk of a running standalone fails once: what it answers, and how it ends.

strace lets one sync of the process fail, as the kernel does after an I/O error.
"""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from tests.support.standalone import Standalone

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@contextmanager
def one_failing_sync(broker: Standalone, journal: Path) -> Iterator[None]:
    """The next sync of the newest segment fails with EIO."""
    segment = max(journal.glob("*.journal"))
    command = ["strace", "-f", "-p", str(broker.pid), "-P", str(segment), "-e", "trace=fdatasync"]
    command += ["-e", "inject=fdatasync:error=EIO:when=1", "-o", "/dev/null"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        for line in strace.stderr:
            if "attached" in line:
                break
        else:
            pytest.skip("strace may not trace here")
        try:
            yield
        finally:
            strace.terminate()


def send(broker: Standalone, count: int) -> int:
    """How many of so many messages are confirmed."""
    confirmed = 0
    client = pulsar.Client(broker.service_url, operation_timeout_seconds=5, logger=_silent())
    try:
        producer = client.create_producer("t", send_timeout_millis=3000, batching_enabled=False)
        for n in range(count):
            producer.send(b"%d" % n)
            confirmed += 1
    except pulsar.PulsarException:
        pass
    finally:
        client.close()
    return confirmed


def _silent() -> pulsar.ConsoleLogger:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def received(broker: Standalone, count: int) -> list[bytes]:
    client = pulsar.Client(broker.service_url, logger=_silent())
    try:
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        return [reader.read_next(60_000).data() for _ in range(count)]
    finally:
        client.close()


def metrics(broker: Standalone) -> dict[str, float]:
    with urllib.request.urlopen(f"{broker.web_url}/metrics/", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.split("{")[0]: float(value) for name, value in pairs}


def test_a_bookie_alone_ends_the_process_and_the_next_one_has_what_was_confirmed(
    tmp_path: Path,
) -> None:
    broker = Standalone(tmp_path / "data").start()
    assert send(broker, 20) == 20
    with one_failing_sync(broker, tmp_path / "data/bookies/bookie-1/journal"):
        assert send(broker, 20) < 20
        assert broker.wait(60) == 1
    log = broker.log_path.read_text()
    assert "bookie-1 takes no writes until it is restarted" in log
    assert "Traceback" not in log
    with broker:
        assert received(broker, 20) == [b"%d" % n for n in range(20)]
        assert send(broker, 5) == 5


def test_one_of_three_leaves_the_fleet_and_says_so(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", "--bookies", "3") as broker:
        assert send(broker, 20) == 20
        assert metrics(broker)["pulsar_health"] == 1
        with one_failing_sync(broker, tmp_path / "data/bookies/bookie-2/journal"):
            assert send(broker, 20) == 20
        deadline = time.monotonic() + 60
        while (found := metrics(broker))["pulsark_bookies_available"] > 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert found["pulsark_bookies_configured"] == 3
        assert found["pulsar_health"] == 0
        assert "bookie bookie-2 has left the fleet" in broker.log_path.read_text()
        assert received(broker, 40) == [b"%d" % n for n in range(20)] * 2
        broker.stop()
        broker.start()
        assert metrics(broker)["pulsar_health"] == 1
        assert received(broker, 40) == [b"%d" % n for n in range(20)] * 2
