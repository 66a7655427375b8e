"""Examples do what they say, started as their readers start them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from tests.docs.reader import ROOT
from tests.support.python_client import connected
from tests.support.standalone import Standalone

PIPELINE = ROOT / "examples" / "pipelines"
SECONDS = 580


def messages(client: pulsar.Client, topic: str) -> list[tuple[str, str]]:
    """Key and value of everything in a topic."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(5000)
        found.append((message.partition_key(), message.data().decode()))
    reader.close()
    return sorted(found)


@pytest.mark.timeout(SECONDS + 20)
def test_the_pipeline_bills_each_order(broker: Standalone, tmp_path: Path) -> None:
    shutil.copytree(PIPELINE, tmp_path, dirs_exist_ok=True)
    spec = tmp_path / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/pulsark-pipeline" in text
    spec.write_text(text.replace("file:///tmp/pulsark-pipeline", tmp_path.as_uri()))
    run_pipeline(spec)
    with connected(broker) as client:
        orders = messages(client, "orders")
        assert messages(client, "bills") == [(key, f"to pay: {value}") for key, value in orders]


def run_pipeline(spec: Path) -> None:
    """One run of spark-pipelines."""
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-pipelines")),
            *("run", "--spec", str(spec), "--conf", "spark.ui.enabled=false"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=spec.parent,
        # A free port for the server of Spark Connect, in place of 15002.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"},
    )
    assert done.returncode == 0, done.stdout[-4000:]
