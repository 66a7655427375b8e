"""The states in which a connection is read or not: every pair of state and event."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from pulsark.dispatch.connection.reading import (
    STORY_LENGTH,
    Event,
    Reading,
    State,
    UnknownTransitionError,
)
from tests.support.broker_clients import TOPIC, Client, scenario

COLUMNS = ["READING", "FULL", "QUEUED", "NO_ROOM", "OVER_RATE", "BEHIND", "STUCK", "CLOSED"]
EXPECTED = """
TOO_MUCH           FULL       -          -          -       -          -       -       -
ALL_TOO_MUCH       QUEUED     QUEUED     QUEUED     -       -          -       -       -
TOO_LARGE          NO_ROOM    NO_ROOM    -          -       -          -       -       -
TOO_FAST           OVER_RATE  OVER_RATE  OVER_RATE  -       -          -       -       -
ROOM               -          READING    READING    -       -          -       -       -
CALLED             -          -          FULL       FULL    FULL       -       -       -
LEFT               BEHIND     BEHIND     BEHIND     -       BEHIND     BEHIND  -       -
LEFT_FOR_REQUESTS  STUCK      STUCK      STUCK      -       STUCK      STUCK   -       -
REQUEST_ENDED      -          -          -          -       -          -       BEHIND  -
DONE               -          -          -          -       -          FULL    -       -
CLOSE              CLOSED     CLOSED     CLOSED     CLOSED  CLOSED     CLOSED  CLOSED  -
"""
"""A line an event, a column a state: the state after it, or none."""

WAYS = {
    State.READING: (),
    State.FULL: (Event.TOO_MUCH,),
    State.QUEUED: (Event.ALL_TOO_MUCH,),
    State.NO_ROOM: (Event.TOO_LARGE,),
    State.OVER_RATE: (Event.TOO_FAST,),
    State.BEHIND: (Event.LEFT,),
    State.STUCK: (Event.LEFT_FOR_REQUESTS,),
    State.CLOSED: (Event.CLOSE,),
}
"""How a connection comes into each state."""


def in_state(state: State) -> Reading:
    reading = Reading()
    for event in WAYS[state]:
        reading.on(event)
    assert reading.state is state
    return reading


def pairs() -> Iterator[tuple[State, Event, State | None]]:
    for line in EXPECTED.split("\n")[1:-1]:
        event, *cells = line.split()
        for column, cell in zip(COLUMNS, cells, strict=True):
            yield State[column], Event[event], None if cell == "-" else State[cell]


def test_the_table_above_has_every_pair() -> None:
    assert {pair[:2] for pair in pairs()} == set(product(State, Event))


@pytest.mark.parametrize(("state", "event", "after"), list(pairs()))
def test_every_event_in_every_state(state: State, event: Event, after: State | None) -> None:
    reading = in_state(state)
    if after is None:
        with pytest.raises(UnknownTransitionError, match=f"{state.value}.*{event.value}"):
            reading.on(event)
        assert reading.state is state
        return
    assert reading.on(event) is reading.state is after
    assert reading.waits_for_room == (after in (State.FULL, State.QUEUED))


def test_an_unknown_event_is_told_with_what_led_to_it() -> None:
    reading = in_state(State.BEHIND)
    reading.on(Event.DONE)
    with pytest.raises(UnknownTransitionError, match=r"Before: reading \+ left, behind \+ done$"):
        reading.on(Event.CALLED)


def test_the_story_has_an_end() -> None:
    reading = Reading()
    for _ in range(STORY_LENGTH):
        reading.on(Event.TOO_MUCH)
        reading.on(Event.ROOM)
    assert reading.story.count("+") == STORY_LENGTH


def test_whatever_stops_a_connection_something_lets_it_go_on() -> None:
    known = {(state, event): after for state, event, after in pairs() if after is not None}
    reach = {State.READING}
    while True:
        more = {s for (s, e), after in known.items() if after in reach and e is not Event.CLOSE}
        if more <= reach:
            break
        reach |= more
    assert reach == set(State) - {State.CLOSED}


def test_an_event_that_cannot_be_costs_one_client_its_connection(caplog: Any) -> None:
    @scenario()
    async def run(broker: Any) -> None:
        client, other = Client(broker), Client(broker)
        client.connection.intake.publishes_have_room()  # nothing had called it
        assert client.transport.closed
        await other.subscribe(TOPIC)

    with caplog.at_level(logging.ERROR):
        run()
    (record,) = caplog.records
    assert "unexpected error, please report it" in record.getMessage()
    assert isinstance(record.exc_info[1], UnknownTransitionError)
