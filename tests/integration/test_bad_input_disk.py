"""A disk that is full, and a journal that a crash or the hardware has damaged."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pulsark.wire import pulsar_pb2 as pb
from tests.support.several_brokers import owners
from tests.support.standalone import Standalone
from tests.support.wire_client import Closed, Refused, WireClient
from tests.support.wire_frames import publish

TOPIC = "persistent://public/default/disk"
TMPFS_BYTES = 512 << 20
MESSAGE_BYTES = 1 << 20
FIRST_MESSAGE_SECONDS = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 512 MiB."""
    target = tmp_path / "small"
    target.mkdir()
    options = f"size={TMPFS_BYTES}".encode()
    if _libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", 0, options) != 0:
        reason = os.strerror(ctypes.get_errno())
        pytest.skip(f"no tmpfs can be mounted here: {reason}")
    yield target
    _libc.umount2(os.fsencode(target), 2)  # lazily: the broker's files may still be open


def publish_until_refused(client: WireClient, sent: int) -> tuple[int, Refused]:
    """Publish numbered messages; the count and the first refusal."""
    for number in range(sent, sent + 2 * TMPFS_BYTES // MESSAGE_BYTES):
        try:
            client.publish(b"%08d" % number + bytes(MESSAGE_BYTES), sequence_id=number)
        except Refused as refused:
            return number, refused
    pytest.fail("a full disk took every message")


def wait_until_published(client: WireClient, number: int, seconds: float) -> None:
    """Publish again and again until it is confirmed; a producer that was closed is reopened."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(Refused, TimeoutError):
            client.producer(TOPIC)
            client.publish(b"%08d" % number, sequence_id=number)
            return
        time.sleep(0.1)
    pytest.fail(f"no publish succeeded within {seconds} s after there was room again")


def numbers(client: WireClient, expected: int, timeout: float = 60.0) -> list[int]:
    found = []
    for _ in range(expected):
        found.append(int(client.message(timeout).payload[:8]))
        client.flow(1)
    return found


def at_owner(standalone: Standalone, timeout: float = 60.0) -> WireClient:
    """A client of the broker that has the topic."""
    (url,) = owners(standalone, [TOPIC.rpartition("/")[2]]).values()
    return WireClient(int(url.rpartition(":")[2]), timeout=timeout)


@pytest.mark.parametrize("brokers", [1, 2])
def test_full_disk(small_disk: Path, brokers: int) -> None:
    """Publishes fail clearly, reads and acks go on, a restart works, and room heals it."""
    standalone = Standalone(small_disk / "data", "--brokers", f"{brokers}")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(TMPFS_BYTES // 2))
    with standalone:
        with at_owner(standalone) as client:
            client.producer(TOPIC)
            confirmed, refused = publish_until_refused(client, 0)
            assert confirmed > 10
            assert refused.code in (pb.PersistenceError, pb.ServiceNotReady)
            assert "space" in str(refused) or "full" in str(refused)
        with at_owner(standalone) as reader:
            reader.subscribe(TOPIC, "s", permits=10)
            assert numbers(reader, confirmed) == list(range(confirmed))
        with at_owner(standalone) as acker:
            acker.subscribe(TOPIC, "s")
            message_id = acker.message().message.message_id
            acker.ack((message_id.ledgerId, message_id.entryId))
        standalone.kill()
        standalone.start()
        with at_owner(standalone) as reader:
            reader.subscribe(TOPIC, "s", permits=10)
            assert numbers(reader, confirmed - 1) == list(range(1, confirmed))
        filler.unlink()
        with at_owner(standalone, timeout=10) as client:
            wait_until_published(client, confirmed, 60.0)
            client.subscribe(TOPIC, "s", permits=10)
            assert numbers(client, confirmed) == list(range(1, confirmed + 1))


# -- damage ----------------------------------------------------------------------------------


def segments(standalone: Standalone, bookie: int = 1) -> list[Path]:
    """Journal segments of a bookie with messages in them, oldest first."""
    journal = standalone.data_dir / "bookies" / f"bookie-{bookie}" / "journal"
    return sorted(path for path in journal.iterdir() if path.stat().st_size > 10_000)


def publish_some(standalone: Standalone, messages: int = 50) -> None:
    with WireClient(standalone.broker_port) as client:
        client.producer(TOPIC)
        for number in range(messages):
            payload = b"%08d" % number + b"needle%08d" % number + bytes(1000)
            client.publish(payload, sequence_id=number)


def flip_bit(path: Path, needle: bytes) -> None:
    """Change one bit of the file where the bytes stand."""
    data = path.read_bytes()
    place = data.index(needle)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([data[place] ^ 4]))


@pytest.mark.feature("F76")
@pytest.mark.parametrize(
    "tail", ["zeros", "junk", "half a record"], ids=lambda tail: tail.replace(" ", "-")
)
def test_torn_tail(tmp_path: Path, tail: str) -> None:
    """What a crash left half-written is cut off; everything confirmed is there."""
    standalone = Standalone(tmp_path / "data", env={"PULSARK_logLevel": "INFO"})
    with standalone:
        check_torn_tail(standalone, tail)


def check_torn_tail(standalone: Standalone, tail: str) -> None:
    publish_some(standalone)
    standalone.kill()
    last = segments(standalone)[-1]
    data = last.read_bytes()
    garbage = {"zeros": bytes(5000), "junk": os.urandom(5000), "half a record": data[-700:-100]}
    with last.open("ab") as file:
        file.write(garbage[tail])
    standalone.start()
    assert "torn tail" in standalone.log_path.read_text()
    with WireClient(standalone.broker_port) as client:
        client.producer(TOPIC)
        client.publish(b"%08d" % 50, sequence_id=50)
        client.subscribe(TOPIC, "s")
        assert numbers(client, 51) == list(range(51))


def test_flipped_bit_with_one_copy(standalone: Standalone) -> None:
    """The damaged message is never delivered wrong, and nothing before it is lost."""
    publish_some(standalone)
    standalone.kill()
    flip_bit(segments(standalone)[-1], b"needle%08d" % 20)
    standalone.start()
    with WireClient(standalone.broker_port) as client:
        client.subscribe(TOPIC, "s")
        found = numbers(client, 20)
        with suppress(TimeoutError, Closed):
            while True:
                found.append(int(client.message(timeout=1.0).payload[:8]))
        assert found == [number for number in range(50) if number != 20][: len(found)]
    with WireClient(standalone.broker_port) as client:
        client.producer(TOPIC + "-other")
        client.publish(b"%08d" % 0)
        client.subscribe(TOPIC + "-other", "s")
        assert numbers(client, 1) == [0]
    assert "corrupt" in standalone.log_path.read_text().lower()


def test_flipped_bit_with_three_copies(tmp_path: Path) -> None:
    """A damaged copy is replaced by a good one."""
    with Standalone(tmp_path / "data", "--bookies", "3") as standalone:
        publish_some(standalone)
        standalone.kill()
        flip_bit(segments(standalone, bookie=1)[-1], b"needle%08d" % 20)
        flip_bit(segments(standalone, bookie=2)[-1], b"needle%08d" % 30)
        standalone.start()
        with WireClient(standalone.broker_port) as client:
            client.subscribe(TOPIC, "s")
            assert numbers(client, 50) == list(range(50))


@pytest.mark.feature("F70")
@pytest.mark.parametrize("what", ["journal", ""], ids=["journal", "everything"])
def test_loss_of_one_bookie_of_three(tmp_path: Path, what: str) -> None:
    """A bookie that lost its journal, or all it had, does not take messages with it."""
    with Standalone(tmp_path / "data", "--bookies", "3") as standalone:
        publish_some(standalone)
        standalone.kill()
        shutil.rmtree(standalone.data_dir / "bookies" / "bookie-2" / what)
        standalone.start()
        with WireClient(standalone.broker_port) as client:
            client.subscribe(TOPIC, "s")
            assert numbers(client, 50) == list(range(50))
            client.producer(TOPIC)
            client.publish(b"%08d" % 50, sequence_id=50)
            assert numbers(client, 1) == [50]


# -- a large journal -------------------------------------------------------------------------


@pytest.mark.slow
def test_restart_with_2_gib_of_journal(standalone: Standalone) -> None:
    """The first message is served within ten seconds of the start of the process."""
    size, total = 16 << 10, 2 << 30
    frame = publish(1, 0, bytes(size))
    with WireClient(standalone.broker_port, timeout=60) as client:
        client.producer(TOPIC)
        together = 64
        for _ in range(total // size // together):
            client.send_bytes(frame * together)
            for _ in range(together):
                client.receipt()
        client.publish(b"last")
    assert sum(path.stat().st_size for path in segments(standalone)) >= total
    standalone.kill()
    begun = time.monotonic()
    standalone.start()
    with WireClient(standalone.broker_port) as client:
        client.subscribe(TOPIC, "s")
        client.message()
    elapsed = time.monotonic() - begun
    assert elapsed < FIRST_MESSAGE_SECONDS, f"{elapsed:.1f} s"
