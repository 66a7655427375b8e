"""Sealing and reading back, on disks that fail."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from pulsark.errors import CorruptEntryError, MetadataError, NoSuchEntryError, StorageError
from pulsark.metadata.paths import sealed_ledger_path, table_path
from pulsark.storage.table.files import seal as seal_module
from pulsark.storage.table.files.record import (
    DataFile,
    Intent,
    SealedLedger,
    TableRecord,
    table_directory,
)
from pulsark.storage.table.files.seal import seal, verify
from pulsark.storage.table.process import reader as reader_module
from pulsark.storage.table.process.reader import TableReader
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimAppendFile, SimDisk
from tests.support.client_view import client_view
from tests.support.tables import check_entries, entries, entry

ROOTS = ["/one/t", "/two/t"]


def sealed(disk: SimDisk, originals: list[bytes], **options: Any) -> SealedLedger:
    files = seal(enumerate(originals), 2, 5, ROOTS, disk, "n", **options)
    return SealedLedger(5, 2, tuple(file.without_statistics() for file in files))


def noise(count: int, size: int) -> list[bytes]:
    rng = random.Random(1)
    return [entry(i, 2, rng.randbytes(size)) for i in range(count)]


def test_files_are_cut_at_their_target_and_row_groups_at_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seal_module, "ROW_GROUP_BYTES", 40_000)
    disk, originals = SimDisk(), noise(60, 2000)
    ledger = sealed(disk, originals, target_bytes=100_000)
    assert len(ledger.files) > 1
    assert ledger.is_whole()
    assert ledger.through == 59
    for root in ROOTS:
        check_entries(disk, root, {5: ledger}, {5: originals})
    assert all(f.path.startswith("partition=2/ledger_id=5/part-") for f in ledger.files)


def test_reads_begin_anywhere_and_end_at_their_limits() -> None:
    disk, originals = SimDisk(), entries(20)
    ledger, reader = sealed(disk, originals), TableReader(ROOTS, disk)
    assert [i for i, _ in reader.read(ledger, 7, 9, 1 << 20)] == [7, 8, 9]
    assert [i for i, _ in reader.read(ledger, 19, 99, 0)] == [19]
    size = len(reader.read(ledger, 3, 3, 1)[0][1])
    assert [i for i, _ in reader.read(ledger, 3, 9, size)] == [3]
    assert [i for i, _ in reader.read(ledger, 3, 9, size + 1)] == [3, 4]
    with pytest.raises(NoSuchEntryError):
        reader.read(ledger, 20, 20, 1)
    reader.close()


def test_many_readers_share_groups_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_module, "ROW_GROUP_BYTES", 4000)
    monkeypatch.setattr(reader_module, "OPEN_FILES_MAX", 1)
    monkeypatch.setattr(reader_module, "GROUPS_KEPT", 1)
    disk, originals = SimDisk(), noise(30, 900)
    ledger, reader = sealed(disk, originals, target_bytes=10_000), TableReader(ROOTS, disk)
    for i in (0, 29, 10, 0, 29, 11):
        assert reader.read(ledger, i, i, 1)[0][0] == i


class Ahead(Executor):
    """What is to be done in another thread, done at once."""

    def __init__(self) -> None:
        self.done = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        self.done += 1
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **named))
        except Exception as e:
            future.set_exception(e)
        return future


def test_who_reads_in_order_has_the_next_group_read_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seal_module, "ROW_GROUP_BYTES", 4000)
    disk, originals, ahead = SimDisk(), noise(30, 900), Ahead()
    ledger = sealed(disk, originals, target_bytes=10_000)
    damaged = f"{ROOTS[0]}/{ledger.files[1].path}"
    disk.edit(damaged, disk.content(damaged)[:-1])
    reader = TableReader(ROOTS, disk, ahead)
    groups, place = 0, 0
    while place < 30:
        found = reader.read(ledger, place, 29, 1 << 20)
        assert ahead.done == groups + (found[-1][0] < 29), "the group behind this one"
        for i, entry_ in found:
            assert client_view(entry_) == client_view(originals[i])
        groups, place = ahead.done, found[-1][0] + 1
    assert groups > len(ledger.files) > 2
    reader.read(ledger, 13, 13, 1)
    assert ahead.done == groups, "a look at one entry reads nothing ahead"
    reader.close()


def test_an_entry_that_fails_its_checksum_is_not_sealed() -> None:
    disk, originals = SimDisk(), entries(5)
    originals[3] = originals[3][:-1] + bytes([originals[3][-1] ^ 1])
    with pytest.raises(CorruptEntryError, match="5:3"):
        sealed(disk, originals)
    assert disk.files() == ()


def test_a_gap_is_not_sealed() -> None:
    with pytest.raises(StorageError, match="entry 2 follows 0"):
        seal([(0, entry(0)), (2, entry(2))], 0, 5, ROOTS, SimDisk(), "n")


def test_a_root_that_fails_is_left_out_unless_it_is_needed() -> None:
    disk = SimDisk()
    disk.name_errno, disk.faulty = errno.EROFS, "/two/"
    ledger = sealed(disk, entries(5))
    check_entries(disk, ROOTS[0], {5: ledger}, {5: entries(5)})
    assert not [path for path in disk.files() if path.startswith("/two/")]
    with pytest.raises(StorageError):
        seal(enumerate(entries(5)), 2, 5, ROOTS, disk, "m", roots_needed=2)
    disk.name_errno, disk.sync_errno = 0, errno.EIO
    with pytest.raises(StorageError):
        seal(enumerate(entries(5)), 2, 5, ROOTS, disk, "o", roots_needed=2)


def test_a_root_that_fails_once_more_when_it_is_left_out_keeps_no_other_one_from_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What could not be written is tried again when a temporary file, or one on NFS, is closed."""
    disk, originals = SimDisk(), entries(5)
    disk.faulty, disk.write_errno = "/two/", errno.ENOSPC
    close = SimAppendFile.close

    def fails(file: SimAppendFile) -> None:
        close(file)
        if file._path.startswith("/two/"):
            raise OSError(errno.ENOSPC, "full", file._path)

    monkeypatch.setattr(SimAppendFile, "close", fails)
    ledger = sealed(disk, originals)
    assert ledger.through == 4
    assert not [path for path in disk.files() if path.startswith("/two/")]
    check_entries(disk, "/one/t", {5: ledger}, {5: originals})


def test_a_full_disk_leaves_no_files() -> None:
    disk = SimDisk()
    disk.capacity = 3000
    with pytest.raises(OSError, match="No space"):
        seal(enumerate(noise(20, 2000)), 2, 5, ROOTS, disk, "n")
    assert disk.files() == ()


def test_a_write_that_changed_on_the_disk_is_found() -> None:
    disk = SimDisk()
    ledger = sealed(disk, entries(5))
    path = f"{ROOTS[0]}/{ledger.files[0].path}"
    verify(disk, ROOTS[0], ledger.files[0])
    disk.flip(path, 100)
    with pytest.raises(CorruptEntryError):
        verify(disk, ROOTS[0], ledger.files[0])


class ForgetfulDisk(SimDisk):
    """Writes something else than it is told to below some path, and says nothing."""

    wrong = "/two/"

    def _write(self, path: str, inode: Any, buffers: Any) -> None:
        data = bytearray(b"".join(buffers))
        if self.wrong in path:
            data[len(data) // 2] ^= 1
        super()._write(path, inode, [bytes(data)])


def test_files_are_read_back_before_they_are_believed() -> None:
    disk = ForgetfulDisk()
    ledger = sealed(disk, entries(5))
    check_entries(disk, ROOTS[0], {5: ledger}, {5: entries(5)})
    assert not [path for path in disk.files() if path.startswith("/two/")], "it is left out"
    with pytest.raises(StorageError):
        seal(enumerate(entries(5)), 2, 5, ROOTS, disk, "m", roots_needed=2)
    disk.wrong = "/"
    with pytest.raises(StorageError):
        seal(enumerate(entries(5)), 2, 5, ROOTS, disk, "o")


@pytest.mark.parametrize("damage", ["cut", "gone", "flip", "empty"])
def test_what_is_damaged_on_one_root_is_read_from_the_other(damage: str) -> None:
    disk, originals = SimDisk(), noise(10, 3000)
    ledger = sealed(disk, originals)
    for number, root in enumerate(ROOTS):
        path = f"{root}/{ledger.files[0].path}"
        content = disk.content(path)
        if damage == "gone":
            disk.discard(path)
        elif damage == "flip":
            disk.edit(path, content[:20_000] + bytes([content[20_000] ^ 1]) + content[20_001:])
        else:
            disk.edit(path, content[: len(content) // 2] if damage == "cut" else b"")
        reader = TableReader(ROOTS, disk)
        if number == 0:
            assert client_view(reader.read(ledger, 4, 4, 1)[0][1]) == client_view(originals[4])
        else:
            with pytest.raises(CorruptEntryError):
                reader.read(ledger, 4, 4, 1)


def test_a_file_of_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    ledger = sealed(disk, entries(3))
    monkeypatch.setattr(reader_module, "FILE_FORMAT_VERSION", 0)
    with pytest.raises(CorruptEntryError, match="format"):
        TableReader(ROOTS, disk).read(ledger, 0, 0, 1)


# -- documents ---------------------------------------------------------------------------------


def file(first: int, last: int, path: str = "") -> DataFile:
    return DataFile(path or f"p{first}", 1, 5, first, last, 3, 4, 9, {"minValues": {"a": 1}})


def test_documents_come_back_and_newer_ones_are_refused() -> None:
    record = TableRecord("ab" * 16, 7, ("/r",)).intending(8, [file(0, 3)], [file(4, 5)])
    assert TableRecord.decode("/x", record.encode()) == record
    ledger = SealedLedger(5, 1, (file(0, 3),))
    assert SealedLedger.decode("/x", ledger.encode()) == ledger
    for decode, value in (
        (TableRecord.decode, record.encode().replace(b'"version":1', b'"version":3')),
        (SealedLedger.decode, ledger.encode().replace(b'"version":1', b'"version":2')),
    ):
        for wrong in (value, b"{}", b"[", b"[]"):
            with pytest.raises(MetadataError, match="/x cannot be read"):
                decode("/x", wrong)


def test_an_intent_is_applied_once_however_often() -> None:
    ledger = SealedLedger(5, 1, (file(0, 3), file(4, 5)))
    merge = Intent(3, 0, (file(0, 5, "merged"),), ledger.files)
    once = ledger.with_intent(merge)
    assert [f.path for f in once.files] == ["merged"]
    assert once.files[0].statistics == {}
    assert [tuple(f) for f in once.left] == [("p0", 0), ("p4", 0)]
    assert SealedLedger.decode("/x", once.encode()) == once
    assert [f.path for f in once.without_left(["p0"]).left] == ["p4"]
    assert once.with_intent(merge) == once
    assert once.is_whole()
    assert once.through == 5
    assert not SealedLedger(5, 1, (file(0, 3), file(5, 5))).is_whole()
    assert not SealedLedger(5, 1, (file(1, 3),)).is_whole()
    assert SealedLedger(5, 1).through == -1
    assert once.file_of(6) is None


def test_paths_hold_ids_and_no_name_that_a_reader_could_misread() -> None:
    topic = TopicName.parse("persistent://a=b/n/t")
    assert table_directory("/r", topic, "id") == "/r/a_b/n/id"
    assert table_path(topic.with_partition(3)) == table_path(topic) == "/tables/a=b/n/persistent/t"
    assert sealed_ledger_path("/tables/t", 5) == "/tables/t/5"
