"""Keys from wherever a setting says they are."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from pulsark.errors import ConfigError
from pulsark.security.keys import Kept, read_location
from pulsark.security.limits import KEY_FILE_BYTES_MAX
from tests.support.descriptors import no_descriptors

DATA = b"\x00secret\n"


def kept(location: str) -> Kept[bytes]:
    return Kept("tokenSecretKey", location, lambda data: data)


@pytest.mark.parametrize(
    "location",
    [
        "data:;base64," + base64.b64encode(DATA).decode(),
        "data:application/octet-stream;charset=x;base64," + base64.b64encode(DATA).decode(),
        "data:,%00secret%0A",
        base64.b64encode(DATA).decode(),
    ],
)
def test_a_location_may_hold_the_data(location: str) -> None:
    assert kept(location).value == DATA == read_location("tokenSecretKey", location)


def test_a_file_is_taken_byte_by_byte(tmp_path: Path) -> None:
    file = tmp_path / "a key"
    file.write_bytes(DATA)
    for location in (str(file), f"file://{file}", f"file:{file}", f"file://{tmp_path}/a%20key"):
        assert kept(location).value == DATA == read_location("tokenSecretKey", location)


@pytest.mark.parametrize(
    "location", ["not base64!", "data:base64", "data:;base64,%%%", "file:///nowhere", "file:a\0b"]
)
def test_what_is_nowhere_is_refused_without_showing_it(location: str) -> None:
    with pytest.raises(ConfigError, match="tokenSecretKey: ") as caught:
        kept(location)
    assert "not base64!" not in str(caught.value)


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(KEY_FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        kept(str(tmp_path / "key"))


def test_a_file_is_read_again_when_it_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"old")
    os.utime(file, ns=(1, 1))
    found = kept(str(file))
    file.write_bytes(b"new")
    os.utime(file, ns=(1, 1))
    assert found.value == b"old"  # nothing shows that it changed
    os.utime(file, ns=(2, 2))
    assert found.value == b"new"


def test_a_file_that_is_gone_or_bad_for_a_moment_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def parse(data: bytes) -> bytes:
        if not data:
            raise ConfigError("tokenSecretKey: empty")
        return data

    file = tmp_path / "key"
    file.write_bytes(b"old")
    os.utime(file, ns=(1, 1))
    found = Kept("tokenSecretKey", str(file), parse)
    file.unlink()
    assert found.value == b"old"
    file.write_bytes(b"")
    os.utime(file, ns=(2, 2))
    assert [found.value, found.value] == [b"old", b"old"]
    assert caplog.text.count("tokenSecretKey: empty") == 1
    file.write_bytes(b"new")
    os.utime(file, ns=(3, 3))
    assert found.value == b"new"


def test_a_file_that_could_not_be_read_is_read_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"old")
    found = kept(str(file))
    file.write_bytes(b"newer")
    with no_descriptors():
        assert [found.value, found.value] == [b"old", b"old"]
    assert caplog.text.count("Too many open files") == 1
    assert found.value == b"newer"
