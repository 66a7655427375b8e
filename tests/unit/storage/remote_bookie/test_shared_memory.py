"""Memory that a broker and a bookie process share: places, and what does not get one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import ProtocolError
from pulsark.storage.bookie.bookie import EntryRun
from pulsark.storage.remote_bookie import remote as remote_module
from pulsark.storage.remote_bookie import shared_memory
from pulsark.storage.remote_bookie.limits import (
    BOOKIE_MEMORY_ADD_BYTES_MIN,
    BOOKIE_MEMORY_BYTES_MAX,
)
from pulsark.storage.remote_bookie.shared_memory import Ring, SharedMemory, peer_memory
from tests.sim.pipe import OneProcess
from tests.sim.simulation import Simulation
from tests.unit.storage.remote_bookie.test_remote_bookie import Answers, appended, wired

BIG = BOOKIE_MEMORY_ADD_BYTES_MIN


@given(st.integers(1, 40), st.lists(st.one_of(st.integers(1, 45), st.none()), max_size=80))
def test_places_that_are_taken_never_overlap(size: int, steps: list[int | None]) -> None:
    """``None`` gives the oldest place back."""
    ring, taken = Ring(size), deque[range]()
    for wanted in steps:
        if wanted is None:
            if taken:
                ring.give_back()
                taken.popleft()
            continue
        start = ring.take(wanted)
        if start is None:
            assert taken or wanted > size, "an empty ring has room"
            continue
        place = range(start, start + wanted)
        assert 0 <= place.start < place.stop <= size
        assert not any(set(place) & set(other) for other in taken)
        taken.append(place)


def test_what_is_put_is_seen_by_the_other_side_in_one_piece() -> None:
    memory = SharedMemory(1 << 16)
    view = peer_memory(OneProcess(), memory.fd, memory.size)
    assert view is not None
    for count in (1, 3, 200):
        payloads = [memoryview(random.randbytes(50 + n)) for n in range(count)]
        whole = b"".join(payloads)
        place = memory.put(payloads, len(whole))
        assert place is not None
        assert view[place : place + len(whole)] == whole
    assert memory.put([bytes(1 << 16)], 1 << 16) is None
    memory.close()
    assert view[place : place + len(whole)] == whole, "the bookie may still need it"
    assert view.readonly


def no_seals() -> tuple[int, int]:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    return fd, 4096


def another_size() -> tuple[int, int]:
    return SharedMemory(8192).fd, 4096


def too_large() -> tuple[int, int]:
    return SharedMemory(4096).fd, BOOKIE_MEMORY_BYTES_MAX + 1


def below_zero() -> tuple[int, int]:
    return SharedMemory(4096).fd, -1


@pytest.mark.parametrize("offered", [no_seals, another_size, too_large, below_zero])
def test_memory_that_could_harm_the_bookie_is_refused(
    offered: Callable[[], tuple[int, int]],
) -> None:
    fd, size = offered()
    try:
        with pytest.raises(ProtocolError, match="memory"):
            peer_memory(OneProcess(), fd, size)
    finally:
        os.close(fd)


@pytest.mark.parametrize("what", ["a file", "a pipe", "nothing"])
def test_what_is_no_memory_is_not_shared(what: str) -> None:
    if what == "a pipe":
        fd, other = os.pipe()  # opening its end again must not wait for a writer
        os.close(other)
    else:
        fd = os.open(__file__, os.O_RDONLY)
    if what == "nothing":
        os.close(fd)
    assert peer_memory(OneProcess(), fd, 4096) is None
    if what != "nothing":
        os.close(fd)


def test_large_adds_pass_no_socket_and_come_back_as_they_were() -> None:
    async def main() -> None:
        async with wired(sim) as (wire, remote):
            written = 0
            for end in wire.pipes.ends:
                arrives = end.arrives

                def counted(piece: bytes, arrives: Callable[[bytes], None] = arrives) -> None:
                    nonlocal written
                    written += len(piece)
                    arrives(piece)

                end.arrives = counted  # type: ignore[method-assign]
            payloads = [random.Random(n).randbytes(BIG // 7) for n in range(70)]
            for first in range(0, 70, 10):
                await appended(remote, EntryRun(7, first, first - 1, payloads[first : first + 10]))
            assert written < BIG
            assert await remote.read(7, 0, 69, 1 << 30) == list(enumerate(payloads))

    with Simulation() as sim:
        sim.run(main())


def test_what_finds_no_place_passes_the_socket_in_its_turn(monkeypatch: Any) -> None:
    """Of adds under way, some have a place and others do not. Places are used many times over."""

    async def main() -> None:
        async with wired(sim) as (_, remote):
            answers, chosen = Answers(), random.Random(5)
            payloads = [chosen.randbytes(chosen.randrange(1, 3 * BIG)) for _ in range(200)]
            for n, payload in enumerate(payloads):
                remote.append(EntryRun(7, n, n - 1, [payload]), answers.of(n))
                if chosen.random() < 0.2:
                    await answers.count(n)
            await answers.count(200)
            assert answers.got == [(n, None) for n in range(200)]
            assert await remote.read(7, 0, 199, 1 << 30) == list(enumerate(payloads))

    monkeypatch.setattr(remote_module, "BOOKIE_MEMORY_BYTES_MAX", 10 * BIG)
    with Simulation() as sim:
        sim.run(main())


@pytest.mark.parametrize("side", ["broker", "bookie"])
def test_all_passes_the_socket_where_no_memory_can_be_shared(monkeypatch: Any, side: str) -> None:
    def refused(*_args: Any) -> Any:
        raise PermissionError(13, "not here")

    async def main() -> None:
        async with wired(sim) as (_, remote):
            payload = random.randbytes(2 * BIG)
            await appended(remote, EntryRun(7, 0, -1, [payload]))
            assert await remote.read(7, 0, 0, 1 << 30) == [(0, payload)]

    where = "memfd_create" if side == "broker" else "open"
    monkeypatch.setattr(shared_memory.os, where, refused)
    with Simulation() as sim:
        sim.run(main())


def test_a_connection_leaves_no_memory_behind() -> None:
    def open_memory() -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum("pulsark-adds" in os.readlink(link) for link in links if os.path.lexists(link))

    async def main() -> None:
        before = open_memory()
        async with wired(sim) as (wire, remote):
            for n in range(5):
                await appended(remote, EntryRun(7, n, n - 1, [bytes(BIG)]))
                assert open_memory() > before
                wire.pipes.cut()
                await asyncio.sleep(0.01)
                await remote.ready()
        await asyncio.sleep(1)
        assert open_memory() == before

    with Simulation() as sim:
        sim.run(main())


def test_its_size_is_sealed() -> None:
    memory = SharedMemory(4096)
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    assert fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL
    memory.close()
