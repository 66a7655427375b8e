"""A backup from somebody else overwrote files outside the data directory.

Did: ``pulsark restore`` of a backup whose list of files has names with ``..`` behind a link.
Saw: the file ``authorized_keys`` beside the new data directory was overwritten.
Expected: an error that names the file, and nothing written outside the target.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import google_crc32c

from tests.support.standalone import Standalone


def _pulsark(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pulsark", *words], capture_output=True, text=True, timeout=60
    )


def test_a_prepared_backup_writes_nothing_elsewhere(tmp_path: Path) -> None:
    data, backup, new = tmp_path / "data", tmp_path / "backup", tmp_path / "new"
    with Standalone(data):
        pass
    assert _pulsark("backup", str(backup), "--data-dir", str(data)).returncode == 0
    victim = tmp_path / "home" / "keys"
    victim.parent.mkdir()
    victim.write_text("the victim's")
    deep = backup / "1" / "2" / "3" / "4" / "5"
    deep.mkdir(parents=True)
    os.symlink(deep, backup / "bookie-1" / "ledgers" / "d")
    (backup / "home").mkdir()
    (backup / "home" / "keys").write_bytes(b"evil")
    sealed = json.loads((backup / "backup.json").read_text())
    body = json.loads(sealed["backup"])
    name = "bookie-1/ledgers/d/../../../../../home/keys"
    body["files"][name] = [4, google_crc32c.value(b"evil")]
    text = json.dumps(body)
    sealed = {"backup": text, "crc32c": google_crc32c.value(text.encode())}
    (backup / "backup.json").write_text(json.dumps(sealed))

    done = _pulsark("restore", str(backup), "--data-dir", str(new))

    assert done.returncode == 1
    assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert victim.read_text() == "the victim's"
    assert not new.exists()
