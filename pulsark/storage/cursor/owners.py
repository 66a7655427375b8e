"""Who owns a cursor, and which names clients may give to theirs.

Clients own the cursors of their subscriptions. The broker owns two on some topics: deduplication
keeps its snapshots in one, and compaction keeps what it has not read yet with the other. Whatever
creates, moves or deletes a cursor says for whom it does so and asks here. A route, a command or a
job that is added later therefore cannot reach a cursor of the broker.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

from pulsark.errors import ClientError, ServerError
from pulsark.limits import SUBSCRIPTION_NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

DEDUPLICATION_CURSOR: Final = "pulsar.dedup"
COMPACTION_CURSOR: Final = "__compaction"


class CursorNameError(ClientError):
    """A cursor with this name is not for the caller."""


class CursorOwner(Enum):
    """Who may create, move and delete a cursor."""

    CLIENTS = "clients"
    DEDUPLICATION = "deduplication"
    COMPACTION = "compaction"


_OWNERS: Final[Mapping[str, CursorOwner]] = {
    DEDUPLICATION_CURSOR: CursorOwner.DEDUPLICATION,
    COMPACTION_CURSOR: CursorOwner.COMPACTION,
}
_RESERVED: Final = (DEDUPLICATION_CURSOR, COMPACTION_CURSOR, "pulsar.repl")
"""New subscriptions cannot begin so. Pulsar's replicators use the last prefix."""

_unprintable: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters, and others that hide in a list of names or change the order of its text."""


def owner_of(name: str) -> CursorOwner:
    """Return the owner of the cursor with this name. Only exact names are the broker's."""
    return _OWNERS.get(name, CursorOwner.CLIENTS)


def is_system_cursor(name: str) -> bool:
    """Return whether the broker itself owns the cursor with this name."""
    return name in _OWNERS


def check_owner(name: str, by: CursorOwner) -> None:
    """Raise ``CursorNameError`` unless ``by`` owns the cursor with this name."""
    owner = owner_of(name)
    if owner is not by:
        raise CursorNameError(
            ServerError.NotAllowedError,
            f"Subscription {name[:64]!a} belongs to {owner.value}; {by.value} cannot use it",
        )


def check_new_name(name: str) -> None:
    """Raise ``CursorNameError`` unless clients may create a subscription with this name."""
    if not name.strip():
        raise CursorNameError(ServerError.ProducerBusy, "The subscription name is empty")
    if len(name) > SUBSCRIPTION_NAME_CHARS_MAX:
        raise CursorNameError(
            ServerError.NotAllowedError,
            f"The subscription name is longer than {SUBSCRIPTION_NAME_CHARS_MAX} characters",
        )
    if _unprintable.search(name):
        raise CursorNameError(
            ServerError.NotAllowedError,
            f"The subscription name {name[:64]!a} contains a character that cannot be printed",
        )
    if name.startswith(_RESERVED):
        raise CursorNameError(
            ServerError.ProducerBusy,
            f"The subscription name {name[:64]!a} is reserved for the system; choose another",
        )
