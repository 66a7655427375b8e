"""A journal that was cut lost acknowledged messages without a line anywhere.

Did: published 200 messages, killed the standalone, cut half of its journal, as a copy that breaks
off does, and ran the doctor; then started again.
Saw: "nothing wrong", and half of the messages without a word in the log.
Expected: the doctor and the log of the start name the loss, until an operator accepts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pulsar
import pytest

from tests.support.standalone import Standalone


def _doctor(standalone: Standalone, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pulsark", "doctor", "--data-dir", str(standalone.data_dir)]
    return subprocess.run([*command, *more], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_loss_is_named_until_it_is_accepted(tmp_path: Path, end: str) -> None:
    standalone = Standalone(tmp_path / "data")
    standalone.start()
    try:
        client = pulsar.Client(standalone.service_url)
        producer = client.create_producer("t", batching_enabled=False)
        for number in range(200):
            producer.send(b"%4d" % number + os.urandom(1000))
        time.sleep(2.5)  # the journal notes once a second how far it is
        client.close()
        getattr(standalone, end)()
        (journal,) = standalone.data_dir.glob("bookies/bookie-1/journal/*.journal")
        os.truncate(journal, journal.stat().st_size // 2)

        found = _doctor(standalone)
        assert found.returncode == 1
        assert "cannot be read" in found.stdout

        standalone.start()
        with urlopen(f"{standalone.web_url}/admin/v2/brokers/health/detail") as answer:
            (problem,) = json.load(answer)["problems"]
        assert journal.name in problem
        assert "pulsark doctor" in problem
        with urlopen(f"{standalone.web_url}/metrics/") as answer:
            lines = answer.read().decode().splitlines()
        (line,) = (line for line in lines if line.startswith("pulsark_storage_losses"))
        assert line.endswith(" 1")
        standalone.kill()
        assert f"DAMAGED {journal.name}" in standalone.log_path.read_text()
        assert _doctor(standalone).returncode == 1

        accepted = _doctor(standalone, "--accept-loss", f"bookie-1/{journal.name}")
        assert accepted.returncode == 0, accepted.stderr
        standalone.start()
        client = pulsar.Client(standalone.service_url)
        consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
        assert consumer.receive(20_000).data().startswith(b"   0")
        client.close()
    finally:
        standalone.kill()
