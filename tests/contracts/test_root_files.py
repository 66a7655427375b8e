"""The contract of ``RootFiles``: a directory, and an object store behind S3's protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from pulsark.runtime import OsDisk, SystemClock
from pulsark.storage.roots.any_root import AnyRoot
from pulsark.storage.roots.object_files import PART_BYTES, READ_BYTES
from pulsark.storage.roots.options import ObjectStoreOptions
from pulsark.storage.roots.root_files import RootFiles
from tests.support.s3_server import ACCESS, BUCKET, S3Server

_numbers = count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ACCESS.items():
            patch.setenv(name, value)
        with S3Server(tmp_path_factory.mktemp("s3") / "log") as server:
            yield server


def in_directory(request: pytest.FixtureRequest, path: Path) -> tuple[RootFiles, str]:
    return AnyRoot(OsDisk(), ObjectStoreOptions(), SystemClock()), str(path)


def in_store(request: pytest.FixtureRequest, path: Path) -> tuple[RootFiles, str]:
    server: S3Server = request.getfixturevalue("store")
    files = AnyRoot(OsDisk(), server.options(), SystemClock())
    return files, f"s3://{BUCKET}/root-{next(_numbers)}"


@pytest.fixture(params=[in_directory, in_store])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RootFiles, str]:
    make: Callable[[pytest.FixtureRequest, Path], tuple[RootFiles, str]] = request.param
    files, path = make(request, tmp_path)
    files.make_dirs(f"{path}/partition=0/ledger_id=5")
    return files, path


def content(files: RootFiles, path: str) -> bytes:
    file = files.open(path)
    try:
        return file.read(0, files.size(path))
    finally:
        file.close()


def written(files: RootFiles, path: str, *pieces: bytes) -> None:
    file = files.create(path)
    file.writev(pieces)
    file.sync()
    file.close()


def test_of_a_new_name_one_writer_succeeds(root: tuple[RootFiles, str]) -> None:
    files, path = root
    files.write_new(f"{path}/f", b"one")
    for data in (b"one", b"two"):
        with pytest.raises(FileExistsError):
            files.write_new(f"{path}/f", data)
    assert content(files, f"{path}/f") == b"one"


def test_of_many_writers_at_the_same_time_one_succeeds(root: tuple[RootFiles, str]) -> None:
    files, path = root

    def attempt(number: int) -> int | None:
        try:
            files.write_new(f"{path}/f", b"%d" % number)
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as threads:
        won = [n for n in threads.map(attempt, range(24)) if n is not None]
    assert [b"%d" % n for n in won] == [content(files, f"{path}/f")]


def test_a_file_is_replaced_as_a_whole(root: tuple[RootFiles, str]) -> None:
    files, path = root
    files.write_atomic(f"{path}/f", b"a longer one")
    files.write_atomic(f"{path}/f", b"short")
    assert content(files, f"{path}/f") == b"short"


def test_what_was_written_in_pieces_is_read_in_any_pieces(root: tuple[RootFiles, str]) -> None:
    files, path = root
    name = f"{path}/partition=0/ledger_id=5/part-0.parquet"
    data = bytes(range(256)) * ((PART_BYTES + READ_BYTES + 4096) // 256)
    written(files, name, data[:1000], data[1000:])
    assert files.size(name) == len(data)
    file = files.open(name)
    for offset, size in (
        (len(data) - 8, 8), (len(data) - 70_000, 70_000), (0, 4), (3, 100_000), (60_000, 10_000),
        (READ_BYTES - 1, READ_BYTES + 2), (len(data) - 3, 100), (len(data), 1), (0, len(data)),
    ):  # fmt: skip
        assert file.read(offset, size) == data[offset : offset + size]
    file.close()


def test_a_file_is_created_once(root: tuple[RootFiles, str]) -> None:
    files, path = root
    written(files, f"{path}/f", b"one")
    with pytest.raises(FileExistsError):
        files.create(f"{path}/f")


def test_a_second_name_has_the_same_bytes_and_stays(root: tuple[RootFiles, str]) -> None:
    files, path = root
    files.write_new(f"{path}/f", b"one")
    name = f"{path}/partition=0/ledger_id=5/g"
    files.link(f"{path}/f", name)
    with pytest.raises(FileExistsError):
        files.link(f"{path}/f", name)
    with pytest.raises(FileNotFoundError):
        files.link(f"{path}/nothing", f"{path}/h")
    files.remove(f"{path}/f")
    assert content(files, name) == b"one"


def test_names_are_those_of_one_directory(root: tuple[RootFiles, str]) -> None:
    files, path = root
    for name in ("b", "a", "partition=0/ledger_id=5/x", "partition=00/y"):
        files.make_dirs(f"{path}/{name}".rpartition("/")[0])
        files.write_new(f"{path}/{name}", b"1")
    assert files.list(path) == ["a", "b", "partition=0", "partition=00"]
    assert files.list(f"{path}/partition=0") == ["ledger_id=5"]
    assert files.list(f"{path}/partition=0/ledger_id=5") == ["x"]
    assert files.list(f"{path}/partition") == []


def test_what_is_not_there_is_told_apart_from_what_fails(root: tuple[RootFiles, str]) -> None:
    files, path = root
    for ask in (files.size, files.open):
        with pytest.raises(FileNotFoundError):
            ask(f"{path}/nothing")
    files.remove(f"{path}/nothing")
    files.remove_dir(f"{path}/nothing")


def test_an_empty_file_is_one(root: tuple[RootFiles, str]) -> None:
    files, path = root
    files.write_atomic(f"{path}/f", b"")
    assert files.size(f"{path}/f") == 0
    assert content(files, f"{path}/f") == b""


def test_what_is_removed_is_gone(root: tuple[RootFiles, str]) -> None:
    files, path = root
    files.write_new(f"{path}/partition=0/ledger_id=5/f", b"one")
    files.remove(f"{path}/partition=0/ledger_id=5/f")
    for directory in ("partition=0/ledger_id=5", "partition=0"):
        files.remove_dir(f"{path}/{directory}")
    assert files.list(path) == []


def test_there_is_room(root: tuple[RootFiles, str]) -> None:
    files, path = root
    free, total = files.space(path)
    assert 0 < free <= total


def test_a_directory_may_have_more_names_than_a_store_lists_at_once(
    root: tuple[RootFiles, str],
) -> None:
    files, path = root
    wanted = [f"{n:020d}.json" for n in range(1010)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: files.write_atomic(f"{path}/{name}", b"{}"), wanted))
    assert [name for name in files.list(path) if name.endswith(".json")] == wanted
