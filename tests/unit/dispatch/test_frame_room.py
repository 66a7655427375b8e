"""The memory of large frames that still arrive: bounded, shared, and nobody waits for ever."""

from __future__ import annotations

import asyncio

from pulsark.dispatch.frame_room import FrameRoom
from pulsark.limits import LARGE_FRAME_SECONDS
from pulsark.wire.frames import LARGE_REST_BYTES
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.broker_clients import TOPIC, Client, Command, scenario
from tests.support.wire_frames import publish

MIB = 1 << 20


class Receiver:
    def __init__(self, name: str, told: list[str]) -> None:
        self._name, self._told = name, told

    def frame_has_room(self) -> None:
        self._told.append(self._name)

    def frame_is_late(self) -> None:
        self._told.append(f"{self._name} is late")


def test_each_owner_takes_as_much_as_it_leaves_free() -> None:
    with Simulation() as sim:

        async def run() -> None:
            room, told = FrameRoom(10 * MIB, sim.runtime(SimDisk()).clock), list[str]()
            greedy = [Receiver(f"g{number}", told) for number in range(9)]
            taken = [room.take(receiver, "greedy", MIB) for receiver in greedy]
            assert taken == [True] * 5 + [False] * 4
            assert (room.bytes, room.waiting) == (5 * MIB, 4)
            modest = Receiver("m", told)
            assert room.take(modest, "modest", MIB)
            assert not told
            room.give_back(greedy[6])  # its connection was closed in line
            room.give_back(modest)
            room.give_back(greedy[0])
            assert told == ["g5"]
            for receiver in greedy[1:6]:
                room.give_back(receiver)
            assert told == ["g5", "g7", "g8"]
            for receiver in greedy:
                room.give_back(receiver)
            assert (room.bytes, room.waiting) == (0, 0)

        sim.run(run())


def test_a_single_frame_has_room_whatever_its_size() -> None:
    with Simulation() as sim:

        async def run() -> None:
            room, told = FrameRoom(MIB, sim.runtime(SimDisk()).clock), list[str]()
            first, second = Receiver("first", told), Receiver("second", told)
            assert room.take(first, "a", 5 * MIB)
            assert not room.take(second, "b", 5 * MIB)
            room.give_back(first)
            assert told == ["second"]
            room.give_back(second)

        sim.run(run())


def test_a_frame_that_does_not_arrive_makes_room_for_those_who_wait() -> None:
    with Simulation() as sim:

        async def run() -> None:
            room, told = FrameRoom(2 * MIB, sim.runtime(SimDisk()).clock), list[str]()
            silent, other = Receiver("silent", told), Receiver("other", told)
            assert room.take(silent, "a", MIB)
            await asyncio.sleep(10 * LARGE_FRAME_SECONDS)
            assert not told  # nobody waits
            assert not room.take(other, "b", MIB)
            await asyncio.sleep(LARGE_FRAME_SECONDS / 2)
            assert told == ["other", "silent is late"]
            room.give_back(other)

        sim.run(run())


@scenario()
async def test_a_connection_without_room_for_its_frame_is_not_read(broker) -> None:
    room = FrameRoom(4 * MIB, broker.broker.clock)
    broker.broker.frame_room = room
    first, second = Client(broker), Client(broker)
    frames = []
    for number, client in enumerate((first, second)):
        await client.produce(f"{TOPIC}{number}", 1)
        frames.append(publish(1, 0, bytes(2 * MIB - 1000)))
    some = 2 * LARGE_REST_BYTES
    first.send_bytes(frames[0][:some])
    second.send_bytes(frames[1][:some])
    assert not first.transport.paused
    assert second.transport.paused
    assert (room.bytes, room.waiting) == (len(frames[0]), 1)
    first.send_bytes(frames[0][some:])
    assert (await first.take(Command.SEND_RECEIPT)).send_receipt.sequence_id == 0
    assert not second.transport.paused
    second.send_bytes(frames[1][some:])
    assert (await second.take(Command.SEND_RECEIPT)).send_receipt.sequence_id == 0
    assert (room.bytes, room.waiting) == (0, 0)


@scenario()
async def test_room_is_free_when_connections_are_gone(broker) -> None:
    room = FrameRoom(4 * MIB, broker.broker.clock)
    broker.broker.frame_room = room
    clients = [Client(broker) for _ in range(3)]
    for client in clients:
        client.send_bytes(publish(1, 0, bytes(2 * MIB - 1000))[: 2 * LARGE_REST_BYTES])
    assert room.waiting == 2
    clients[1].hang_up()
    await asyncio.sleep(0.1)
    assert room.waiting == 1
    await asyncio.sleep(2 * LARGE_FRAME_SECONDS)
    assert clients[0].transport.closed
    assert not clients[2].transport.paused
    clients[2].hang_up()
    await asyncio.sleep(0.1)
    assert (room.bytes, room.waiting) == (0, 0)
