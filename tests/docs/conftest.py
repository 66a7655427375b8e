"""One standalone and one Spark session for all documents, and what a reader has at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pulsark
from tests.docs.reader import Reader
from tests.support.python_client import connected
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """The standalone that all documents talk to; topic ``orders`` has messages."""
    with Standalone(tmp_path_factory.mktemp("standalone") / "data") as standalone:
        with connected(standalone) as client:
            producer = client.create_producer("orders")
            for table in ("table-7", "table-8", "table-7"):
                producer.send(b"one espresso", partition_key=table)
        # Before the JVM starts: Python processes of Spark inherit its environment.
        os.environ["PULSARK_SERVICE_URL"] = standalone.service_url
        os.environ["PULSARK_ADMIN_URL"] = standalone.web_url
        yield standalone
        del os.environ["PULSARK_SERVICE_URL"], os.environ["PULSARK_ADMIN_URL"]


@pytest.fixture(scope="session")
def spark(broker: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that ``pulsark.session()`` returns in snippets."""
    session = pulsark.session(
        "docs",
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def reader(broker: Standalone, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """Somebody in an empty directory with an installed ``.venv`` and a running standalone."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    someone = Reader(tmp_path, broker, lambda: request.getfixturevalue("spark"))
    yield someone
    left = [p for p in someone.started if p.poll() is None]
    for process in left:
        process.kill()
        process.wait()
    assert not left, f"left running: {[subprocess.list2cmdline(map(str, [p.args])) for p in left]}"
