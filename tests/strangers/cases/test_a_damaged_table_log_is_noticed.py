"""The log of a table was damaged, the doctor called it healthy, and the broker wrote behind it.

Did: stopped a standalone, damaged a commit of a table's Delta log, ran ``pulsark doctor``, started
again, published, and sealed.
Saw: "Nothing is wrong here", and more commits behind the damaged one.
Expected: the doctor names the commit; sealing of that topic stops, health and metrics say why, no
message is lost, and ``pulsark tables repair`` makes it go on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsark.admin_client.client import AdminClient
from pulsark.errors import PulsarkError
from tests.support.python_client import connected
from tests.support.standalone import Standalone

TOPIC = "persistent://public/default/damaged"


def _publish(standalone: Standalone, count: int) -> None:
    with connected(standalone) as client:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(count):
            producer.send(b"%d" % number)


def _seal(standalone: Standalone) -> None:
    AdminClient(standalone.web_url).call("POST", f"/{TOPIC.replace('://', '/')}/seal")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pulsark", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _get(standalone: Standalone, path: str) -> str:
    with urllib.request.urlopen(f"{standalone.web_url}{path}") as answer:
        return str(answer.read().decode())


def _garbage(commit: Path) -> None:
    commit.write_bytes(b"\x00 garbage\n")


def _gap(commit: Path) -> None:
    commit.unlink()


def _altered(commit: Path) -> None:
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = action["add"]["path"].replace("part-", "lost-")
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("damage", [_garbage, _gap, _altered])
def test_a_damaged_log_is_found_and_nothing_is_written_behind_it(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    standalone = Standalone(tmp_path / "data")
    with standalone:
        for _ in range(2):
            _publish(standalone, 5)
            _seal(standalone)
    (log,) = (tmp_path / "data").rglob("_delta_log")
    damage(log / f"{1:020d}.json")
    before = sorted(path.name for path in log.glob("*.json"))
    found = _run("doctor", "--data-dir", str(tmp_path / "data"))
    assert found.returncode == 1
    assert "is damaged" in found.stdout
    assert "pulsark tables repair" in found.stdout

    with standalone:
        _publish(standalone, 5)
        with pytest.raises(PulsarkError, match="its log is damaged"):
            _seal(standalone)
        assert sorted(path.name for path in log.glob("*.json")) == before
        assert "is damaged" in _get(standalone, "/admin/v2/brokers/health/detail")
        assert "pulsark_table_log_damaged{" in _get(standalone, "/metrics/")
        with connected(standalone) as client:
            reader = client.create_reader(TOPIC, start_message_id=_earliest())
            read = [reader.read_next(10_000).data() for _ in range(15)]
        assert read == [b"%d" % n for n in range(5)] * 3

        repaired = _run("tables", "repair", TOPIC, "--admin-url", standalone.web_url)
        assert repaired.returncode == 0, repaired.stderr
        _seal(standalone)
        assert DeltaTable(str(log.parent)).to_pyarrow_table().num_rows == 15
        assert "pulsark_table_log_damaged{" not in _get(standalone, "/metrics/")
    assert _run("doctor", "--data-dir", str(tmp_path / "data")).returncode == 0


def _earliest() -> object:
    import pulsar

    return pulsar.MessageId.earliest
