"""Strangers make room for other connections, and known clients keep their places."""

from __future__ import annotations

import pytest

from pulsark.security.connection_slots import ConnectionSlots, Slot, for_connections
from pulsark.security.limits import STRANGERS_RELIEVED


class Door:
    """Connections that close as real ones do: soon, and by themselves."""

    def __init__(self, most: int) -> None:
        self.slots = ConnectionSlots(most)
        self.closed: list[str] = []

    def enter(self, name: str, weight: int = 1) -> Slot | None:
        return self.slots.take(lambda: self.closed.append(name), weight)


def known(door: Door, name: str) -> Slot:
    slot = door.enter(name)
    assert slot is not None
    slot.log_in()
    return slot


def test_the_oldest_stranger_goes_first() -> None:
    door = Door(3)
    for name in "abcde":
        assert door.enter(name) is not None
    assert door.closed == ["a", "b"]
    assert (door.slots.taken, door.slots.strangers, door.slots.evicted) == (3, 3, 2)


def test_a_known_client_stays_through_a_flood() -> None:
    door = Door(3)
    client = known(door, "client")
    for number in range(100):
        door.enter(f"flood-{number}")
    assert "client" not in door.closed
    assert client.is_known
    assert door.slots.taken == 3


def test_a_client_logs_in_during_a_flood() -> None:
    door = Door(3)
    for number in range(10):
        door.enter(f"flood-{number}")
    known(door, "client")
    for number in range(10, 20):
        door.enter(f"flood-{number}")
    assert "client" not in door.closed


def test_known_clients_are_not_closed_for_anybody() -> None:
    door = Door(2)
    first = known(door, "a")
    known(door, "b")
    assert door.enter("c") is None
    assert door.slots.refused == 1
    first.leave()
    assert door.enter("d") is not None


def test_a_complete_request_is_answered_before_its_connection_goes() -> None:
    door = Door(2)
    asking = door.enter("asking")
    assert asking is not None
    asking.ask()
    for number in range(10):
        door.enter(f"flood-{number}")
    assert "asking" not in door.closed
    asking.answered()
    door.enter("a")
    door.enter("b")
    assert "asking" in door.closed
    asking.answered()
    asking.leave()
    assert door.slots.taken == 2


def test_a_slot_comes_back_once() -> None:
    door = Door(2)
    stranger, evicted = door.enter("a"), door.enter("b")
    assert stranger is not None
    assert evicted is not None
    stranger.leave()
    stranger.leave()
    stranger.log_in()
    assert door.slots.taken == 1
    door.enter("c")
    door.enter("d")
    assert door.closed == ["b"]
    evicted.leave()
    assert door.slots.taken == 2


def test_a_heavy_connection_takes_the_places_of_several() -> None:
    door = Door(4)
    for name in "abcd":
        door.enter(name)
    assert door.enter("relay", 3) is not None
    assert door.closed == ["a", "b", "c"]
    assert door.enter("too heavy", 5) is None


def test_without_descriptors_the_oldest_strangers_go() -> None:
    door = Door(1000)
    known(door, "client")
    for number in range(100):
        door.enter(str(number))
    door.slots.relieve()
    assert door.closed == [str(number) for number in range(STRANGERS_RELIEVED)]
    assert door.slots.taken == 101 - STRANGERS_RELIEVED


@pytest.mark.parametrize(
    ("limit", "most"), [(300, 200), (1024, 683), (1500, 1000), (65_536, 64_512), (1 << 20, 1047552)]
)
def test_storage_has_a_reserve(limit: int, most: int) -> None:
    assert for_connections(limit) == most
