"""Whose cursors are whose: clients cannot use the broker's, nor take names that look like them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsark.errors import ClientError, ServerError
from pulsark.limits import SUBSCRIPTION_NAME_CHARS_MAX
from pulsark.storage.cursor.cursor import Cursor
from pulsark.storage.cursor.owners import (
    COMPACTION_CURSOR,
    DEDUPLICATION_CURSOR,
    CursorOwner,
    check_new_name,
    check_owner,
    is_system_cursor,
    owner_of,
)
from pulsark.storage.cursor.records import CursorIdentity
from pulsark.storage.cursor.state import AckedSet, CursorState
from pulsark.wire.position import EARLIEST, Position
from tests.support.cursors import TopicLedgers
from tests.support.logging_in import SetClock

SYSTEM = (COMPACTION_CURSOR, DEDUPLICATION_CURSOR)
ROOT = Path(__file__).parents[4] / "pulsark"


def test_only_exact_names_are_the_brokers() -> None:
    assert owner_of(DEDUPLICATION_CURSOR) is CursorOwner.DEDUPLICATION
    assert owner_of(COMPACTION_CURSOR) is CursorOwner.COMPACTION
    for name in ("__compaction2", "pulsar.dedup.x", "pulsar.repl.west", "__x", "", "s"):
        assert owner_of(name) is CursorOwner.CLIENTS
        assert not is_system_cursor(name)


@pytest.mark.parametrize("name", SYSTEM)
def test_nobody_but_its_owner_uses_a_cursor(name: str) -> None:
    for by in CursorOwner:
        if by is owner_of(name):
            check_owner(name, by)
        else:
            with pytest.raises(ClientError, match=re.escape(name)) as refused:
                check_owner(name, by)
            assert refused.value.code is ServerError.NotAllowedError
    with pytest.raises(ClientError):
        check_owner("of a client", owner_of(name))


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "\t",
        "a\nb",
        "\x1b[2J",
        "a\x00",
        "a\x7f",
        "\u202egnp",
        "\u200b",
        "a\ufeff",
        "\u2028",
        "\ud800",
        *SYSTEM,
        "__compaction2",
        "pulsar.dedup.x",
        "pulsar.repl.west",
        "n" * (SUBSCRIPTION_NAME_CHARS_MAX + 1),
    ],
)
def test_names_that_no_new_subscription_may_have(name: str) -> None:
    with pytest.raises(ClientError) as refused:
        check_new_name(name)
    str(refused.value).encode("ascii")  # fit for every log and terminal
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "name", ["s", "a b", "a/b", "%00", "__x", "pulsar", "größe", "注文", "n" * 1024]
)
def test_names_that_it_may_have(name: str) -> None:
    check_new_name(name)


@pytest.mark.parametrize("name", SYSTEM)
def test_a_system_cursor_does_not_move_for_clients(name: str) -> None:
    state = CursorState(TopicLedgers((1, 3)), EARLIEST)
    cursor = Cursor(CursorIdentity(1, "t", name, 0), state, {"kept": "1"}, SetClock(), None)
    before = cursor.reached
    for change in (
        lambda: cursor.reset(Position(1, 0)),
        lambda: cursor.restore(AckedSet()),
        lambda: cursor.set_properties({}),
    ):
        with pytest.raises(ClientError):
            change()
    assert (cursor.reached, cursor.properties) == (before, {"kept": "1"})


def test_what_serves_clients_moves_no_cursor_itself() -> None:
    """Those that do it for clients, in ``dispatch/subscription``, ask whose it is and report it."""
    moves = re.compile(r"cursor\.(ack|ack_cumulative|reset|restore|set_properties)\(")
    found = [
        f"{path.relative_to(ROOT)}: {call[0]}"
        for room in ("admin", "dispatch/connection", "dispatch/scalable", "dispatch/spark")
        for path in (ROOT / room).rglob("*.py")
        for call in moves.finditer(path.read_text())
    ]
    assert found == []
