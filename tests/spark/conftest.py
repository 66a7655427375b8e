"""One Spark session and one broker for all tests here; a topic of its own for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

import pulsark
from tests.support.python_client import connected
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory needs a JVM."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("broker") / "data") as standalone:
        yield standalone


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    # Workers import the tests' modules, too.
    os.environ["PYTHONPATH"] = str(HERE.parents[1])
    session = pulsark.session(
        "tests",
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.sql.streaming.pollingDelay": "20ms",
            "spark.sql.session.timeZone": "UTC",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def client(broker: Standalone) -> Iterator[pulsar.Client]:
    with connected(broker) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def reading(broker: Standalone, topic: str) -> dict[str, Any]:
    """Options that read the test's topic."""
    return {"serviceUrl": broker.service_url, "adminUrl": broker.web_url, "topic": topic}


@pytest.fixture
def writing(broker: Standalone) -> dict[str, Any]:
    """Options that write to the tests' broker."""
    return {"serviceUrl": broker.service_url, "adminUrl": broker.web_url}
