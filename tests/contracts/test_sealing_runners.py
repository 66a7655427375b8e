"""Both runners of sealing do the same. ``tests/spark/test_seal_ledgers.py`` adds the JVM."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.seal_contract import (
    BOOKIES,
    SETTINGS,
    NoSpark,
    Seal,
    rows,
    run_job,
    seals_every_message_once_on_every_root,
    tables,
)
from tests.support.standalone import Standalone


def by_itself() -> Seal:
    """Waits for the broker's own process."""
    expected = iter((300, 310, 310))

    def seal(broker: Standalone, topic: str) -> None:
        wanted, deadline = next(expected), time.monotonic() + 60
        while not tables(broker) or rows(tables(broker)[-1]) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.5)  # the last steps of the attach

    return seal


def by_job(broker: Standalone, topic: str) -> None:
    assert run_job(broker, topic, NoSpark()) == 0


def test_the_process_of_a_broker(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", *BOOKIES, env=SETTINGS) as broker:
        seals_every_message_once_on_every_root(broker, by_itself())


def test_the_tasks_of_the_job(tmp_path: Path) -> None:
    env = {**SETTINGS, "PULSARK_sealByJobs": "true"}
    with Standalone(tmp_path / "data", *BOOKIES, env=env) as broker:
        seals_every_message_once_on_every_root(broker, by_job)
