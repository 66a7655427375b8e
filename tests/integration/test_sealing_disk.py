"""A storage root without room: messages stay in the journal, and publishing goes on."""

from __future__ import annotations

import time
from pathlib import Path

from tests.integration.test_bad_input_disk import TMPFS_BYTES, small_disk
from tests.support.hurried import HURRIED
from tests.support.seal_contract import consumed, publish, rows, tables
from tests.support.standalone import Standalone

__all__ = ["small_disk"]

LEFT_BYTES = 1 << 20
"""Less than sealing leaves free on a disk of this size."""


def test_publishing_goes_on_where_there_is_no_room_to_seal(
    tmp_path: Path, small_disk: Path
) -> None:
    filler = small_disk / "filler"
    env = {
        "PULSARK_ledgerDirectories": str(small_disk / "ledgers"),
        "PULSARK_journalDirectories": str(tmp_path / "journal"),
        "PULSARK_sealFreshnessSeconds": "1",
        **HURRIED,
    }
    with Standalone(tmp_path / "data", env=env) as broker:
        with filler.open("wb") as file:
            piece = bytes(LEFT_BYTES)
            for _ in range((TMPFS_BYTES - 2 * LEFT_BYTES) // LEFT_BYTES):
                file.write(piece)
        publish(broker, "t", 0, 50)
        deadline = time.monotonic() + 60
        while "no room to seal" not in broker.log_path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "publishing goes on" in broker.log_path.read_text()
        publish(broker, "t", 50, 50)
        before = consumed(broker, "t", "before", 100)
        assert not list(small_disk.rglob("*.parquet"))
        filler.unlink()
        deadline = time.monotonic() + 60
        while not (found := tables_on(small_disk)) or rows(found[0]) < 100:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert consumed(broker, "t", "after", 100) == before
        assert tables(broker) == []


def tables_on(root: Path) -> list[Path]:
    return [log.parent for log in root.rglob("_delta_log")]
