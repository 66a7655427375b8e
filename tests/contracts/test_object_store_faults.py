"""What ``ObjectFiles`` makes of a store that is slow, refuses, or whose answers are lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from pulsark.runtime import SystemClock
from pulsark.storage.roots.object_files import PART_BYTES, ObjectFiles
from pulsark.storage.roots.options import ObjectStoreOptions, read_credentials
from pulsark.storage.roots.store_pause import (
    DeniedStoreError,
    ObjectStoreError,
    PausedStoreError,
)
from tests.contracts.test_root_files import content, written
from tests.contracts.test_root_files import store as store
from tests.support.s3_faults import FaultyStore
from tests.support.s3_server import ACCESS, BUCKET, S3Server

_numbers = count()


class HandClock(SystemClock):
    """Of which only the pauses of a store depend."""

    def __init__(self) -> None:
        self._now = 1000.0

    def monotonic(self) -> float:  # type: ignore[override]
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


PLACE = f"s3://{BUCKET}/faults"


@pytest.fixture(scope="module")
def faulty(store: S3Server) -> Iterator[FaultyStore]:
    with FaultyStore(store.port) as proxy:
        yield proxy


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def files(store: S3Server, faulty: FaultyStore, clock: HandClock) -> ObjectFiles:
    faulty.next()
    faulty.seen.clear()
    return ObjectFiles(store.options(faulty.url, timeout=1, retry=2), clock)


@pytest.fixture
def behind(store: S3Server, clock: HandClock) -> ObjectFiles:
    """The same store, without faults."""
    return ObjectFiles(store.options(), clock)


@pytest.fixture
def name() -> str:
    return f"{PLACE}/{next(_numbers)}"


def test_a_put_whose_answer_is_lost_was_made_once(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    faulty.next("lost")
    files.write_new(name, b"mine")
    assert content(behind, name) == b"mine"
    assert [method for method, _ in faulty.seen] == ["PUT", "GET"]


def test_a_put_that_never_came_is_made_again(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    faulty.next("gone")
    files.write_new(name, b"mine")
    assert content(behind, name) == b"mine"


def test_a_lost_answer_is_not_taken_for_success_where_another_was_faster(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    behind.write_new(name, b"theirs")
    faulty.next("lost")
    with pytest.raises(FileExistsError):
        files.write_new(name, b"mine")
    assert content(behind, name) == b"theirs"


def test_a_put_that_comes_late_is_found_by_the_next_attempt(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    """The first one is read as not there, and has come when the second one does."""

    def rule(method: str, path: str) -> str:
        puts = [seen for seen in faulty.seen if seen[0] == "PUT"]
        if method == "PUT" and len(puts) == 1:
            return "gone"
        if method == "PUT" and len(puts) == 2:
            behind.write_new(name, b"mine")
        return "pass"

    faulty.rule = rule  # type: ignore[assignment]
    files.write_new(name, b"mine")
    assert content(behind, name) == b"mine"


def test_a_put_of_unknown_outcome_is_an_error_and_may_be_repeated(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, clock: HandClock, name: str
) -> None:
    faulty.rule = lambda method, path: "lost" if method == "PUT" else "refused"
    with pytest.raises(ObjectStoreError):
        files.write_new(name, b"mine")
    faulty.next()
    clock.advance(2)
    with pytest.raises(FileExistsError):  # who repeats it finds out what became of it
        files.write_new(name, b"mine")
    assert content(files, name) == b"mine"


@pytest.mark.parametrize("fault", ["refused", "gone", "lost", "cut"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_what_may_be_repeated_is_repeated(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, name: str, fault: str, method: str
) -> None:
    behind.write_new(name, b"x" * 100_000)
    faulty.next(fault, method=method)  # type: ignore[arg-type]
    files.write_atomic(name, b"y" * 100_000)
    written(files, f"{name}-2", b"z" * 100_000)
    assert content(files, name) == b"y" * 100_000
    assert files.size(f"{name}-2") == 100_000


def test_a_large_file_is_sent_in_parts_of_which_some_fail(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    data = bytes(range(256)) * (2 * PART_BYTES // 256 + 1)
    faulty.next("pass", "refused", "lost")
    written(files, name, data)
    assert content(behind, name) == data


def test_a_file_that_cannot_be_sent_is_not_there_in_part(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    file = files.create(name)
    file.writev([b"x" * (PART_BYTES + 1)])
    faulty.rule = lambda method, path: "denied" if method == "PUT" else "pass"
    with pytest.raises(ObjectStoreError):
        file.sync()
    file.close()
    with pytest.raises(FileNotFoundError):
        behind.size(name)


def test_a_store_that_fails_is_left_alone_and_said_so_once(
    files: ObjectFiles,
    faulty: FaultyStore,
    clock: HandClock,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    faulty.rule = lambda method, path: "denied"
    pauses = []
    for _ in range(8):
        with pytest.raises(ObjectStoreError):
            files.size(name)
        asked, start = len(faulty.seen), clock.monotonic()
        while len(faulty.seen) == asked:
            with pytest.raises(ObjectStoreError):
                files.list(name)
            clock.advance(0.5)
        pauses.append(clock.monotonic() - start)
        clock.advance(64)
    assert pauses[0] < pauses[1] < pauses[2]
    assert max(pauses) <= 61
    faulty.next()
    clock.advance(64)
    files.write_new(name, b"mine")
    assert len(caplog.messages) == 2
    assert "answers again" in caplog.messages[1]


def test_while_it_is_left_alone_nobody_waits(
    files: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    faulty.rule = lambda method, path: "hang"
    before = time.monotonic()
    with pytest.raises(ObjectStoreError):
        files.write_new(name, b"mine")
    assert time.monotonic() - before < 20
    before = time.monotonic()
    for _ in range(100):
        with pytest.raises(PausedStoreError):
            files.write_new(name, b"mine")
    assert time.monotonic() - before < 0.5


def test_what_is_clearly_answered_is_no_failure(files: ObjectFiles, name: str) -> None:
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            files.size(name)
    files.write_new(name, b"mine")
    with pytest.raises(FileExistsError):
        files.write_new(name, b"mine")
    assert content(files, name) == b"mine"


def test_errors_have_no_secrets_and_are_one_line(
    files: ObjectFiles, faulty: FaultyStore, name: str
) -> None:
    faulty.rule = lambda method, path: "denied"
    with pytest.raises(DeniedStoreError) as error:
        files.size(name)
    assert not any(secret in str(error.value) for secret in ACCESS.values())
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_credentials_come_from_a_file_that_may_change(
    store: S3Server, clock: HandClock, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "credentials"
    options = ObjectStoreOptions(store.url, "", str(path), 5, 0)
    with pytest.raises(ObjectStoreError, match="objectStoreCredentialsFile"):
        ObjectFiles(options, clock).size(name)
    path.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = very-secret\n")
    ObjectFiles(options, clock).write_new(name, b"mine")
    path.write_text("[default]\naws_access_key_id = very-secret\n")
    with pytest.raises(OSError, match="lacks") as error:
        read_credentials(str(path))
    assert "very-secret" not in str(error.value)


def test_a_bucket_that_is_not_there_is_no_empty_one(store: S3Server, clock: HandClock) -> None:
    with pytest.raises(OSError, match=r"404 Not Found"):
        ObjectFiles(store.options(), clock).list("s3://no-such-bucket/tables")


def test_a_store_that_fails_is_no_empty_object_whatever_its_name(
    files: ObjectFiles, behind: ObjectFiles, faulty: FaultyStore
) -> None:
    name = f"{PLACE}/416/ledger_id=416"
    behind.write_new(name, b"mine")
    faulty.rule = lambda method, path: "refused"
    with pytest.raises(ObjectStoreError):
        files.open(name)


def test_an_empty_object_is_read_as_one(files: ObjectFiles, name: str) -> None:
    files.write_atomic(name, b"")
    assert content(files, name) == b""
