"""What bookies of ``pulsark cluster`` are given for the messages that they are to take."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.processes.bookkeeper_server import room_for
from pulsark.processes.bookkeeper_storage import client_settings


@pytest.mark.parametrize(
    ("largest", "heap"), [(5 << 20, "128m"), (6 << 20, "144m"), (10 << 20, "208m")]
)
def test_half_of_the_write_cache_holds_the_largest_message(largest: int, heap: str) -> None:
    frame_bytes_max = client_settings(Settings(maxMessageSize=largest)).frame_bytes_max
    settings, memory = room_for(frame_bytes_max)
    assert settings["nettyMaxFrameSizeBytes"] == frame_bytes_max
    cache_mib = settings["dbStorage_writeCacheMaxSizeMb"]
    assert isinstance(cache_mib, int)
    assert (cache_mib << 20) // 2 > frame_bytes_max
    assert memory == heap
