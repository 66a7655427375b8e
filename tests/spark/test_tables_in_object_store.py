"""Spark on topics whose tables are in an object store and, as a second copy, in a directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsark.runtime import OsDisk, SystemClock
from pulsark.storage.roots.any_root import AnyRoot
from tests.support.local_cluster import LocalCluster
from tests.support.s3_server import ACCESS, BUCKET, S3Server
from tests.support.seal_contract import admin, consumed, publish
from tests.support.standalone import Standalone
from tests.support.tables import attached_files, check_files

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "streams"),
    [
        (Standalone, False),
        pytest.param(Standalone, True, marks=pytest.mark.chaos),
        pytest.param(LocalCluster, True, marks=pytest.mark.chaos),
    ],
)
def test_spark_writes_reads_seals_and_replicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Standalone], streams: bool
) -> None:
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    with S3Server(tmp_path / "s3.log") as server:
        reached = {"PULSARK_objectStoreEndpoint": server.url}
        env = {
            **reached,
            "PULSARK_tableRoots": f"s3://{BUCKET}/here,{tmp_path}/there",
            "PULSARK_sealByJobs": "true",
        }
        bookies = "2" if kind is Standalone else "3"
        with kind(tmp_path / "data", "--bookies", bookies, env=env) as broker:
            publish(broker, "from-clients", 0, 300)
            given = [broker.service_url, broker.web_url]
            if streams:
                given.append(f"{tmp_path}/checkpoint")
            done = subprocess.run(
                [sys.executable, "-m", "tests.spark.s3_driver", *given],
                cwd=ROOT,
                env={**os.environ, **reached, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-4000:]
            found = json.loads(done.stdout.splitlines()[-1])
            assert found["read"] == [5000, 5000 * 4999 // 2]
            assert found["clients"] == 300
            if streams:
                assert (found["again"], found["past"]) == (5000, 5000)
                assert len(consumed(broker, "again", "all", 5000)) == 5000
            assert found["codes"] == [0, 0]
            assert "reading from the broker" not in done.stderr
            files = AnyRoot(OsDisk(), server.options(), SystemClock())
            for topic, rows in (("from-clients", 300), ("from-spark", 5000)):
                path = f"/admin/v2/persistent/public/default/{topic}/table"
                directories = admin(broker, "GET", path)["directories"]
                assert sorted(d.startswith("s3://") for d in directories) == [False, True]
                logs = [attached_files(files, directory) for directory in directories]
                assert logs[0] == logs[1]
                for directory in directories:
                    check_files(files, directory, logs[0][1])
                assert sum(file.rows for file in logs[0][1]) == rows
