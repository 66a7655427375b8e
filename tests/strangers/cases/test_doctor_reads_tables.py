"""A byte of a table's file changed on the disk, and the doctor found nothing wrong.

Did: stopped a standalone, flipped a byte in a Parquet file, and ran ``pulsark doctor --data-dir``.
Saw: "Nothing is wrong here."
Expected: a failure that names the file, and what to do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pulsark.admin_client.client import AdminClient
from tests.support.python_client import connected
from tests.support.standalone import Standalone


def test_the_doctor_finds_a_changed_byte(tmp_path: Path) -> None:
    topic = "persistent://public/default/flipped"
    with Standalone(tmp_path / "data") as standalone:
        with connected(standalone) as client:
            client.create_producer(topic).send(b"value")
        AdminClient(standalone.web_url).call("POST", f"/{topic.replace('://', '/')}/seal")
    (file,) = (tmp_path / "data").rglob("*.parquet")
    found = bytearray(file.read_bytes())
    found[len(found) // 2] ^= 1
    file.write_bytes(found)
    command = [sys.executable, "-m", "pulsark", "doctor", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert file.name in done.stdout
    assert "pulsark tables repair" in done.stdout
