"""What Flight clients send is followed frame by frame, and bounded."""

from __future__ import annotations

import pytest

from pulsark.dispatch.spark.flight_requests import PREFACE, FlightRequests, RequestError
from pulsark.limits import (
    FLIGHT_CALLS_MAX,
    FLIGHT_REQUEST_BYTES_MAX,
    FLIGHT_REQUESTS_BYTES_MAX,
)

DATA, HEADERS, RESET, SETTINGS, WINDOW = 0, 1, 3, 4, 8
END, PADDED = 0x1, 0x8


def frame(kind: int, payload: bytes = b"", stream: int = 1, flags: int = 0) -> bytes:
    return (
        len(payload).to_bytes(3, "big")
        + bytes((kind, flags))
        + stream.to_bytes(4, "big")
        + (payload)
    )


def request(size: int, stream: int = 1, flags: int = END, first: bytes = b"\0") -> bytes:
    """A request in two frames."""
    half = size // 2
    body = first + bytes(size - 1)
    return frame(HEADERS, b"head", stream) + (
        frame(DATA, body[:half], stream) + frame(DATA, body[half:], stream, flags)
    )


def take(sent: bytes, step: int = 1 << 20) -> None:
    requests = FlightRequests()
    for start in range(0, len(PREFACE + sent), step):
        requests.take(memoryview(PREFACE + sent)[start : start + step])


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_small_requests_pass_however_they_are_cut(step: int) -> None:
    sent = frame(SETTINGS, bytes(12), 0) + frame(WINDOW, b"\xff" * 4)
    for stream in range(1, 41, 2):
        sent += request(FLIGHT_REQUEST_BYTES_MAX if step > 7 else 300, stream)
    take(sent, step)


@pytest.mark.parametrize("step", [5, 1 << 20])
@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (request(FLIGHT_REQUEST_BYTES_MAX + 1), "larger than"),
        (frame(DATA, bytes(1000)) * 40, "larger than"),
        (request(100, first=b"\1"), "compressed"),
        (frame(DATA) + frame(DATA, b"\1", flags=END), "compressed"),
        (frame(DATA, b"\0", flags=PADDED), "padded"),
        (
            b"".join(frame(DATA, b"\0", stream) for stream in range(1, 6001, 2)),
            "its requests are larger than",
        ),
        (
            b"".join(
                request(FLIGHT_REQUEST_BYTES_MAX, stream, flags=0)
                for stream in range(
                    1, 2 * FLIGHT_REQUESTS_BYTES_MAX // FLIGHT_REQUEST_BYTES_MAX + 3, 2
                )
            ),
            "its requests are larger than",
        ),
    ],
    ids=["large", "in pieces", "compressed", "compressed later", "padded", "many tiny", "many"],
)
def test_others_are_refused(sent: bytes, why: str, step: int) -> None:
    with pytest.raises(RequestError, match=why):
        take(sent, step)


def test_a_frame_is_refused_at_its_head() -> None:
    with pytest.raises(RequestError, match="larger"):
        take(b"\xff\xff\xff" + bytes((DATA, 0)) + (1).to_bytes(4, "big"))


def test_what_has_ended_does_not_count() -> None:
    half = FLIGHT_REQUEST_BYTES_MAX // 2
    take((frame(DATA, bytes(half)) + frame(RESET, bytes(4))) * 100)
    take(request(half, 1) * 100)


@pytest.mark.parametrize("step", [1, 4, 1 << 20])
def test_few_calls_are_under_way_at_a_time(step: int) -> None:
    requests = FlightRequests()
    requests.take(memoryview(PREFACE))

    def answered(sent: bytes) -> None:
        for start in range(0, len(sent), step):
            requests.answered(memoryview(sent)[start : start + step])

    answered(frame(SETTINGS, bytes(12), 0))
    streams = iter(range(1, 1 << 20, 2))
    open_ones = [next(streams) for _ in range(FLIGHT_CALLS_MAX)]
    for stream in open_ones:
        requests.take(memoryview(request(20, stream)))
    ends = (
        lambda stream: answered(
            frame(HEADERS, b"a", stream)
            + frame(DATA, bytes(100), stream)
            + frame(HEADERS, b"trailers", stream, END)
        ),
        lambda stream: answered(frame(RESET, bytes(4), stream)),
        lambda stream: requests.take(memoryview(frame(RESET, bytes(4), stream))),
    )
    for number in range(300):
        ends[number % 3](open_ones.pop(0))
        open_ones.append(next(streams))
        requests.take(memoryview(request(20, open_ones[-1])))
    with pytest.raises(RequestError, match="calls are under way"):
        requests.take(memoryview(request(20, next(streams))))
