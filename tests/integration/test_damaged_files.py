"""Sealed files that are damaged: another copy is read, or the read fails; it is never short."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsark.admin_client.client import AdminClient
from pulsark.datasource.options.errors import UnavailableError
from pulsark.datasource.options.options import Options
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.reader import PulsarkReader
from tests.support.seal_contract import BOOKIES, SETTINGS, publish
from tests.support.standalone import Standalone

COPIES, MESSAGES = 3, 300


def read(broker: Standalone, **more: str) -> int:
    """How many messages Spark's tasks get."""
    given = {"serviceUrl": broker.service_url, "adminUrl": broker.web_url, "topic": "t", **more}
    options = Options.parse(given, streaming=False)
    reader = PulsarkReader(options, layout_of(options, dict), ("value",))
    return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [1, COPIES])
def test_a_sealed_file_that_is_damaged(tmp_path: Path, damaged: int) -> None:
    with Standalone(tmp_path / "data", *BOOKIES, env=SETTINGS) as broker:
        publish(broker, "t", 0, MESSAGES)
        AdminClient(broker.web_url).call("POST", "/persistent/public/default/t/seal")
        assert read(broker) == MESSAGES
        broker.stop()  # and what it has in memory is gone
        copies: dict[str, list[Path]] = {}
        for path in sorted(tmp_path.rglob("*.parquet")):
            if "_delta_log" not in path.parts:
                copies.setdefault(path.name, []).append(path)
        assert copies
        for paths in copies.values():
            assert len(paths) == COPIES
            for path in paths[:damaged]:
                data = path.read_bytes()
                middle = len(data) // 2
                path.write_bytes(data[:4] + bytes(middle - 4) + data[middle:])
        broker.start()
        for from_files in ("true", "false"):
            if damaged < COPIES:
                assert read(broker, readTableFiles=from_files) == MESSAGES
            else:
                with pytest.raises(UnavailableError, match="can be read from no storage root"):
                    read(broker, readTableFiles=from_files, pollTimeoutMs="5000")
