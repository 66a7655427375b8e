"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pulsar
import pytest
from hypothesis import settings

from pulsark.admin_client.client import AdminClient
from pulsark.metadata.etcd.address import EtcdAddress
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from tests.support import etcd as etcd_server
from tests.support import loop_steps
from tests.support.bookkeeper import Cluster, start_bookies
from tests.support.loop_steps import LongStep, long_steps
from tests.support.one_for_all import one_for_all
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.zookeeper import address_of, below_a_root_of_its_own, start_server

# A shell starts background jobs with SIGINT ignored, and processes inherit that. Tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run; HYPOTHESIS_PROFILE=long looks for new ones.
settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

_numbers = count()

SLOW_WEIGHT = 20
"""So many others take as long as a slow test."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of files that go to several processes the long ones begin: none ends alone with one."""
    if hasattr(config, "workerinput"):
        weights: Counter[Path] = Counter()
        for item in items:
            weights[item.path] += SLOW_WEIGHT if item.get_closest_marker("slow") else 1
        items.sort(key=lambda item: -weights[item.path])


@pytest.fixture(scope="session")
def shared_standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """One standalone for all tests that need no special treatment; use unique topic names."""
    with Standalone(tmp_path_factory.mktemp("standalone") / "data") as standalone:
        yield standalone


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    """A standalone of the test's own."""
    with Standalone(tmp_path / "data") as process:
        yield process


@pytest.fixture
def measured_standalone(
    tmp_path: Path,
) -> Iterator[tuple[Standalone, Callable[[], list[LongStep]]]]:
    """One whose event loop is measured, and what kept it busy for too long since it was ready."""
    steps = tmp_path / "steps"
    env = {"PULSARK_TEST_MAIN": loop_steps.MAIN, loop_steps.FILE: str(steps)}
    with Standalone(tmp_path / "data", env=env) as process:
        before = len(long_steps(steps))
        yield process, lambda: long_steps(steps)[before:]


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One directory for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def shared_zookeeper(shared_directory: Path) -> Iterator[ZooKeeperAddress]:
    """One ZooKeeper for all tests and workers."""
    directory = shared_directory / "zookeeper"
    with one_for_all(directory, partial(start_server, directory)) as started:
        yield address_of(started)


@pytest.fixture
def zookeeper(shared_zookeeper: ZooKeeperAddress) -> ZooKeeperAddress:
    """A root of the test's own in the ZooKeeper of all tests."""
    return below_a_root_of_its_own(shared_zookeeper)


@pytest.fixture(scope="session")
def shared_etcd(shared_directory: Path) -> Iterator[EtcdAddress]:
    """One etcd for all tests and workers; skips where there is no program."""
    etcd_server.program()
    directory = shared_directory / "etcd"
    with one_for_all(directory, partial(etcd_server.start_server, directory)) as started:
        yield etcd_server.address_of(started)


@pytest.fixture
def etcd(shared_etcd: EtcdAddress) -> EtcdAddress:
    """A root of the test's own in the etcd of all tests."""
    return etcd_server.below_a_root_of_its_own(shared_etcd)


@pytest.fixture(scope="session")
def bookkeeper(shared_zookeeper: ZooKeeperAddress, shared_directory: Path) -> Iterator[Cluster]:
    """Three bookies of BookKeeper for all tests and workers, which leave them running."""
    directory = shared_directory / "bookkeeper"
    address = below_a_root_of_its_own(shared_zookeeper)
    with one_for_all(directory, partial(start_bookies, address, directory, 3)) as started:
        yield Cluster(replace(shared_zookeeper, root=started["root"]), [], directory)


@pytest.fixture
def client(shared_standalone: Standalone) -> Iterator[pulsar.Client]:
    """The official client, connected to the standalone of all tests."""
    with connected(shared_standalone) as client:
        yield client


@pytest.fixture
def admin(shared_standalone: Standalone) -> AdminClient:
    """The admin API of the standalone of all tests."""
    return AdminClient(shared_standalone.web_url)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test uses."""
    return f"persistent://public/default/{request.function.__name__}-{next(_numbers)}"


@pytest.fixture
def namespace(admin: AdminClient) -> str:
    """A namespace of the test's own."""
    name = f"public/namespace-{next(_numbers)}"
    admin.call("PUT", f"/namespaces/{name}")
    return name
