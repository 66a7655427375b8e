"""What a connection over Flight costs before it is used."""

from __future__ import annotations

from pulsark.dispatch.spark.flight_buffers import CopyBuffer
from pulsark.limits import FLIGHT_COPY_BYTES_MAX, FLIGHT_COPY_BYTES_MIN


def test_a_buffer_is_small_until_much_comes() -> None:
    buffer = CopyBuffer(FLIGHT_COPY_BYTES_MAX)
    for _ in range(100):
        buffer.took(FLIGHT_COPY_BYTES_MIN - 1)
        assert len(buffer.view) == FLIGHT_COPY_BYTES_MIN
    sizes = []
    while len(buffer.view) < FLIGHT_COPY_BYTES_MAX:
        buffer.view[:] = b"x" * len(buffer.view)
        read = buffer.took(len(buffer.view))
        assert read == b"x" * len(read)  # as it was, until it is written
        sizes.append(len(buffer.view))
    assert sizes == sorted(set(sizes))
    buffer.took(len(buffer.view))
    assert len(buffer.view) == FLIGHT_COPY_BYTES_MAX


def test_what_clients_send_never_makes_it_larger() -> None:
    buffer = CopyBuffer()
    buffer.took(len(buffer.view))
    assert len(buffer.view) == FLIGHT_COPY_BYTES_MIN
