"""What Python workers of Spark say when they end, started as the JVM starts them."""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ANSWERS_NOBODY = "def main(infile, outfile):\n    infile.read(1)\n    outfile.write(b'rows')\n"
FAILS = "def main(infile, outfile):\n    infile.read(1)\n    raise OSError('disk full')\n"
OURS = "import pulsark.datasource\n"


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        pytest.param(ANSWERS_NOBODY, b"BrokenPipeError", id="of Spark"),
        pytest.param(OURS + ANSWERS_NOBODY, None, id="ours"),
        pytest.param(OURS + FAILS, b"OSError: disk full", id="ours, with news"),
    ],
)
def test_a_worker_that_is_not_listened_to_ends_quietly(
    tmp_path: Path, worker: str, said: bytes | None
) -> None:
    (tmp_path / "pyspark_worker.py").write_text(worker)
    sockets = tempfile.mkdtemp()  # a socket's path is short, and ``tmp_path`` may be long
    environment = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    daemon = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark_worker"],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    (length,) = struct.unpack("!i", daemon.stdout.read(4))
    with socket.socket(socket.AF_UNIX) as jvm:
        jvm.connect(daemon.stdout.read(length).decode())
        ended = os.pidfd_open(struct.unpack("!i", jvm.recv(4))[0])
    assert select.select([ended], [], [], 30)[0]
    os.close(ended)
    daemon.stdin.close()  # and so the daemon ends
    errors = daemon.stderr.read()
    daemon.wait(timeout=30)
    shutil.rmtree(sockets)
    assert (said in errors) if said else not errors
