"""Restore ended in a traceback, or in no memory, where the list of a backup was wrong.

Did: ``pulsark restore`` of backups whose ``backup.json`` has Infinity as a size, has 60 GB, or is a
pipe.
Saw: an OverflowError with its traceback, a process that is killed, a command that waits for ever.
Expected: one line that names the file, the field and what to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import google_crc32c
import pytest


@pytest.mark.parametrize("what", ["infinity", "huge", "pipe"])
def test_one_line_says_what_is_wrong(tmp_path: Path, what: str) -> None:
    manifest = tmp_path / "backup" / "backup.json"
    manifest.parent.mkdir()
    if what == "pipe":
        os.mkfifo(manifest)
    elif what == "huge":
        manifest.touch()
        os.truncate(manifest, 60 << 30)
    else:
        files = {"metadata.db": [float("inf"), 1]}
        body = json.dumps({"version": 1, "files": files})
        sealed = {"backup": body, "crc32c": google_crc32c.value(body.encode())}
        manifest.write_text(json.dumps(sealed))
    command = [sys.executable, "-m", "pulsark", "restore", str(manifest.parent)]
    command += ["--data-dir", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(manifest) in done.stderr
    assert {"infinity": "the size of 'metadata.db'", "huge": "bytes", "pipe": "plain"}[
        what
    ] in done.stderr
    assert not (tmp_path / "new").exists()
