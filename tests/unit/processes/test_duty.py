"""What a process is told by its supervisor arrives as it was."""

from __future__ import annotations

from pulsark.config.settings import Settings
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.processes.duty import BrokerDuty, Disks, Duty
from pulsark.storage.table.root_identity import StorageRoots


def test_of_a_broker() -> None:
    roots = StorageRoots(("/a", "/b"), {"/a": "1", "/b": "2"}, {"/old": "/a"})
    broker = BrokerDuty(
        Disks(["bookie-1"], roots), {"brokerServicePort": [5, 6]}, ServiceUrls("pulsar://x:1"), True
    )
    duty = Duty("broker-1", Settings(journalDirectories=("/j",), webServicePort=None), broker)
    assert Duty.decode(duty.encode()) == duty
    assert duty.encode().count(b"\n") == 1


def test_of_the_bookies() -> None:
    duty = Duty("bookie", Settings(tokenSecretKey="data:;base64,AAAA"), adopt=True)
    assert Duty.decode(duty.encode()) == duty
