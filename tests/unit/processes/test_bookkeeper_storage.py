"""A broker that starts says so if bookies are too few; what clients may send, bookies get."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.limits import FRAME_OVERHEAD_BYTES
from pulsark.processes.bookkeeper_storage import client_settings, too_few
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.bookkeeper.digests import PLAIN
from pulsark.wire.bookkeeper.requests import encode_adds
from pulsark.wire.frames import send_frame

SETTINGS = Settings(
    managedLedgerDefaultEnsembleSize=4,
    managedLedgerDefaultWriteQuorum=3,
    managedLedgerDefaultAckQuorum=2,
)


@pytest.mark.parametrize(
    ("writable", "words"),
    [
        (5, ""),
        (4, ""),
        (
            3,
            "managedLedgerDefaultEnsembleSize=4, and 3 bookies take entries now: new ledgers have "
            "fewer copies. Start more bookies, or lower managedLedgerDefaultEnsembleSize",
        ),
        (
            1,
            "managedLedgerDefaultAckQuorum=2, and 1 bookie takes entries now: nothing can be "
            "published. Start more bookies, or lower managedLedgerDefaultAckQuorum",
        ),
    ],
)
def test_the_setting_the_number_and_the_cure_are_named(writable: int, words: str) -> None:
    assert too_few(SETTINGS, writable) == words


@pytest.mark.parametrize("largest", [1 << 20, 5 << 20, 20 << 20])
def test_the_largest_entry_that_a_client_may_send_fits_a_frame_of_bookies(largest: int) -> None:
    """Else it would fail at each bookie, and leave its topic without a ledger each time."""
    send = pb.CommandSend(producer_id=0, sequence_id=0)
    rest = len(send_frame(pb.BaseCommand(type=pb.BaseCommand.SEND, send=send), b""))
    entry = bytes(largest + FRAME_OVERHEAD_BYTES - rest)
    taken = client_settings(Settings(maxMessageSize=largest)).frame_bytes_max
    needed = encode_adds(7, 0, -1, 0, [entry], PLAIN).largest
    assert needed <= taken
    assert taken >= 5_253_120, "what was stored with a larger limit is read on"
