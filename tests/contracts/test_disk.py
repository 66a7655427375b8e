"""The contract of ``runtime.Disk``: the operating system's files, and the simulated ones.

What a method says is durable must be there after a power failure. For the simulated disk that is
looked at; for the real one it follows from the syncs that it makes, which are recorded where it
asks for them and, with strace, where the kernel is asked.
"""

from __future__ import annotations

import errno
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from pulsark import runtime
from pulsark.runtime import Disk, OsDisk
from tests.sim.disk import SimDisk
from tests.support.power_cut import Recorder

# Each prepares a directory, and then does the one thing that must be durable.
Case = tuple[Callable[[Disk, str], object], Callable[[Disk, str], object]]


def nothing(disk: Disk, path: str) -> None:
    pass


def a_file(disk: Disk, path: str) -> None:
    disk.write_atomic(f"{path}/f", b"first" * 200)


def append(disk: Disk, path: str) -> None:
    file = disk.create(f"{path}/new")
    file.writev([b"one", b"two"])
    file.sync()
    file.writev([b"three"] * 2000)
    file.sync()
    file.close()


CASES: dict[str, Case] = {
    "make_dirs": (nothing, lambda disk, path: disk.make_dirs(f"{path}/a/b/c")),
    "create": (nothing, lambda disk, path: disk.create(f"{path}/new").close()),
    "append": (nothing, append),
    "write_atomic": (a_file, lambda disk, path: disk.write_atomic(f"{path}/f", b"second")),
    "write_new": (a_file, lambda disk, path: disk.write_new(f"{path}/g", b"new")),
    "link": (a_file, lambda disk, path: disk.link(f"{path}/f", f"{path}/g")),
    "truncate": (a_file, lambda disk, path: disk.truncate(f"{path}/f", 7)),
    "write_again": (a_file, lambda disk, path: disk.write_again(f"{path}/f", 13)),
    "remove": (a_file, lambda disk, path: disk.remove(f"{path}/f")),
}


def record(case: str, path: str, monkeypatch: pytest.MonkeyPatch, skip: int = 0) -> Recorder:
    prepare, act = CASES[case]
    disk = OsDisk()
    prepare(disk, path)
    recorder = Recorder(skip)
    monkeypatch.setattr(runtime, "os", recorder)
    act(disk, path)
    monkeypatch.undo()
    return recorder


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_to_a_power_failure(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record(case, str(tmp_path), monkeypatch)
    assert recorder.unsynced == set()
    assert recorder.too_early == []
    assert recorder.calls


@pytest.mark.parametrize("case", [name for name in CASES if name != "append"])
def test_without_any_one_of_the_syncs_something_would_be(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all").mkdir()
    syncs = record(case, f"{tmp_path}/all", monkeypatch).calls
    for skip, (_, path) in enumerate(syncs, 1):
        if path == str(tmp_path):
            continue  # the parent of a directory that was there: see below
        directory = f"{tmp_path}/{skip}"
        (tmp_path / str(skip)).mkdir()
        recorder = record(case, directory, monkeypatch, skip)
        assert recorder.unsynced or recorder.too_early, syncs[skip - 1]


def test_the_names_of_what_an_earlier_process_made_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    recorder = Recorder()
    monkeypatch.setattr(runtime, "os", recorder)
    OsDisk().make_dirs(f"{tmp_path}/a")
    assert recorder.calls == [("fsync", str(tmp_path))]
    OsDisk().sync_names(f"{tmp_path}/a")
    assert recorder.calls[1:] == [("fsync", f"{tmp_path}/a")]


@pytest.mark.parametrize("reason", [errno.EACCES, errno.EINVAL, errno.EROFS])
def test_the_parent_of_what_is_there_need_not_be_one_that_can_be_synced(
    reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(reason, "no")

    monkeypatch.setattr(runtime.os, "fsync", refuse)
    OsDisk().make_dirs(str(tmp_path))
    with pytest.raises(OSError, match="no"):
        OsDisk().make_dirs(f"{tmp_path}/new")


def test_a_parent_whose_sync_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(runtime.os, "fsync", fail)
    with pytest.raises(OSError, match="no"):
        OsDisk().make_dirs(str(tmp_path))


def test_each_sync_of_an_appended_file_is_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record("append", str(tmp_path), monkeypatch)
    file = str(tmp_path / "new")
    assert recorder.calls == [
        ("fsync", str(tmp_path)),
        ("fdatasync", file),
        ("fdatasync", file),
    ]


@pytest.mark.parametrize(
    ("inodes", "left", "free"), [(0, 0, 40 << 30), (10**6, 10**5, 40 << 30), (10**6, 30, 30 << 20)]
)
def test_a_disk_without_inodes_has_no_room(
    inodes: int, left: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(
        f_bavail=10 << 20, f_frsize=4096, f_blocks=20 << 20, f_files=inodes, f_favail=left
    )
    monkeypatch.setattr(runtime.os, "statvfs", lambda path: usage)
    assert OsDisk().space("/") == (free, 80 << 30)


@pytest.mark.parametrize("disk", [OsDisk(), SimDisk()], ids=["os", "sim"])
def test_only_an_empty_directory_is_removed(disk: Disk, tmp_path: Path) -> None:
    path = f"{tmp_path}/a"
    disk.make_dirs(f"{path}/b")
    disk.remove_dir(path)
    assert disk.list(path) == ["b"]
    disk.write_new(f"{path}/b/f", b"content")
    disk.remove_dir(f"{path}/b")
    assert disk.list(f"{path}/b") == ["f"]
    disk.remove(f"{path}/b/f")
    for _ in range(2):
        disk.remove_dir(f"{path}/b")
        assert disk.list(path) == []
    disk.make_dirs(f"{path}/b")
    assert disk.list(path) == ["b"]


# What the kernel is asked.

STRACE = ["strace", "-f", "-y", "-qq", "-e", "signal=none", "-e"]


def traced(trace: str, script: str, *arguments: str) -> list[str]:
    """The system calls of a Python script, a line each."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = [*STRACE, f"trace={trace}", "-o", "/dev/stdout", sys.executable, "-c", script]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    if "PTRACE" in done.stderr or "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


EVERY_CASE = """
import os, sys
from pulsark.runtime import OsDisk
from tests.contracts.test_disk import CASES
for name, (prepare, act) in CASES.items():
    directory = f"{sys.argv[1]}/{name}"
    os.mkdir(directory)
    prepare(OsDisk(), directory)
    act(OsDisk(), directory)
"""


def test_the_kernel_gets_the_syncs_that_were_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "recorded").mkdir()
    recorder = Recorder()
    monkeypatch.setattr(runtime, "os", recorder)
    for name, (prepare, act) in CASES.items():
        directory = tmp_path / "recorded" / name
        directory.mkdir()
        prepare(OsDisk(), str(directory))
        act(OsDisk(), str(directory))
    monkeypatch.undo()
    found = []
    for line in traced("fsync,fdatasync", EVERY_CASE, f"{tmp_path}/real"):
        call = re.search(r"(fsync|fdatasync)\(\d+<(.*)>\) += 0", line)
        assert call is not None, line
        found.append((call[1], call[2].replace("/real", "/recorded")))
    named = [(call, re.sub(r"\.[0-9a-f]{16}\.tmp$", "", path)) for call, path in recorder.calls]
    assert [(call, re.sub(r"\.[0-9a-f]{16}\.tmp$", "", path)) for call, path in found] == named


PUT_SOME = """
import asyncio, os, sys
from pulsark.metadata.sqlite import SqliteMetadataStore
from pulsark.runtime import Runtime
async def main():
    store = await SqliteMetadataStore.open(sys.argv[1], Runtime())
    os.write(2, b"opened")
    for n in range(5):
        await store.put(f"/n/{n}", b"value")
        os.write(2, b"answered")
    await store.close()
asyncio.run(main())
"""


def test_a_write_to_the_metadata_store_is_answered_after_its_sync(tmp_path: Path) -> None:
    lines = traced("fsync,fdatasync,write", PUT_SOME, f"{tmp_path}/metadata.db")
    answered, synced = 0, False
    for line in lines:
        # A call during which another thread makes one is two lines.
        if re.search(r"(metadata\.db-wal>|sync resumed>)\) += 0", line):
            synced = True
        elif '"opened"' in line:
            synced = False
        elif '"answered"' in line:
            assert synced, f"put {answered} was answered before a sync"
            answered, synced = answered + 1, False
    assert answered == 5


@pytest.mark.parametrize("case", CASES)
def test_the_simulated_disk_keeps_it_over_a_power_failure(case: str) -> None:
    prepare, act = CASES[case]
    disk = SimDisk()
    disk.make_dirs("/d")
    prepare(disk, "/d")
    act(disk, "/d")
    after = disk.survivor("none", random.Random(0))
    assert after._dirs == disk._dirs
    assert after.files() == disk.files()
    assert [after.content(f) for f in after.files()] == [disk.content(f) for f in disk.files()]


@pytest.mark.parametrize("case", CASES)
def test_both_disks_show_the_same(case: str, tmp_path: Path) -> None:
    prepare, act = CASES[case]
    simulated, shown = SimDisk(), []
    simulated.make_dirs("/d")
    for disk, path in ((simulated, "/d"), (OsDisk(), str(tmp_path))):
        prepare(disk, path)
        act(disk, path)
        files = [name for name in disk.list(path) if name != "a"]
        contents = [disk.open(f"{path}/{name}").read(0, 1 << 20) for name in files]
        sizes = [disk.size(f"{path}/{name}") for name in files]
        shown.append((disk.list(path), contents, sizes))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("make", [SimDisk, OsDisk])
def test_names_that_are_taken_or_missing(make: type[SimDisk | OsDisk], tmp_path: Path) -> None:
    disk, path = make(), str(tmp_path)
    disk.make_dirs(path)
    a_file(disk, path)
    with pytest.raises(FileExistsError):
        disk.create(f"{path}/f")
    with pytest.raises(FileExistsError):
        disk.write_new(f"{path}/f", b"")
    disk.write_atomic(f"{path}/g", b"")
    with pytest.raises(FileExistsError):
        disk.link(f"{path}/f", f"{path}/g")
    needs_a_file: list[Callable[[str], object]] = [
        disk.open,
        disk.size,
        lambda name: disk.truncate(name, 1),
        lambda name: disk.write_again(name, 0),
        lambda name: disk.link(name, f"{path}/new"),
    ]
    for method in needs_a_file:
        with pytest.raises(FileNotFoundError):
            method(f"{path}/missing")
    disk.remove(f"{path}/missing")
    assert disk.list(f"{path}/missing") == []
    with pytest.raises(FileNotFoundError):
        disk.sync_names(f"{path}/missing")
    assert disk.list(path) == ["f", "g"]
