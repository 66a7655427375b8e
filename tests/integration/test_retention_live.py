"""A real process forgets what was acknowledged, gives the disk back, and knows it after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsark.admin_client.client import AdminClient
from tests.support.python_client import connect
from tests.support.standalone import Standalone

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "retentionCheckIntervalInSeconds": "1",
    "journalMaxSizeMB": "1",
    "cursorFlushIntervalMillis": "100",
}
NAMESPACE = "public/short"
TOPIC = f"persistent://{NAMESPACE}/t"
MESSAGES, KIB = 1200, b"x" * 8192
WAIT_SECONDS = 60.0


def journal_bytes(data: Path) -> int:
    return sum(f.stat().st_size for f in data.rglob("*") if "journal" in f.parts and f.is_file())


def soon(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_SECONDS
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def stats(admin: AdminClient, what: str) -> dict[str, object]:
    found = admin.get(f"/persistent/{NAMESPACE}/t/{what}")
    assert isinstance(found, dict)
    return found


@pytest.mark.feature("F2", "F17", "F51")
def test_acknowledged_messages_leave_the_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    with Standalone(data, *settings) as standalone:
        admin = AdminClient(standalone.web_url)
        admin.call("PUT", f"/namespaces/{NAMESPACE}")
        client = connect(standalone)
        consumer = client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC, block_if_queue_full=True)
        for number in range(MESSAGES):
            producer.send_async(KIB, lambda *_: None, properties={"n": str(number)})
            if number % 25 == 24:
                producer.flush()
        assert journal_bytes(data) > MESSAGES * len(KIB)

        half = MESSAGES // 2
        for number in range(half):
            message = consumer.receive(60_000)
            assert message.properties()["n"] == str(number)
        consumer.acknowledge_cumulative(message)
        assert soon(lambda: journal_bytes(data) < MESSAGES * len(KIB) * 0.7), journal_bytes(data)

        def kept() -> int:
            return int(str(stats(admin, "internalStats")["numberOfEntries"]))

        # The journal may have shrunk enough before the last ledgers that can go are gone.
        assert soon(lambda: kept() <= half + 50), kept()
        assert kept() >= half

        client.close()
        standalone.kill()
        standalone.start()
        client = connect(standalone)
        consumer = client.subscribe(TOPIC, "s")
        for number in range(half, MESSAGES):
            message = consumer.receive(60_000)
            assert message.properties()["n"] == str(number)
        consumer.acknowledge_cumulative(message)
        assert soon(lambda: stats(admin, "stats")["storageSize"] == 0), stats(
            admin, "internalStats"
        )
        assert soon(lambda: journal_bytes(data) < 3 << 20), journal_bytes(data)

        producer = client.create_producer(TOPIC)
        producer.send(b"next")
        assert consumer.receive(60_000).data() == b"next"
        client.close()
