"""Who may publish to a topic beside whom: the producer access modes. Pure.

A topic has producers side by side, or one alone, its *holder*. Each holder has an *epoch*, which
rises with the next one and is durable, so a client that was the only producer and comes back
learns that another one was there in between.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from pulsark.errors import ClientError, ServerError

TOPIC_EPOCH_MAX = 1 << 62
"""The highest that a client may come back with. Above it there is room for all that follow: the
protocol has 64 bits for an epoch, and clients in Java read the highest as a sign."""


class AccessMode(IntEnum):
    """How a producer wants a topic, as in the protocol."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class Access(Enum):
    """What a producer gets."""

    SHARED = "shared"
    """It publishes beside others."""
    ALONE = "alone"
    """It becomes the holder; all other producers have to go first."""
    WAIT = "wait"
    """It becomes the holder once all producers before it have left."""


def access(
    mode: AccessMode,
    asked_epoch: int | None,
    epoch: int | None,
    *,
    holder: str | None,
    waiting: bool,
    connected: bool,
) -> Access:
    """What a producer that asks for a topic gets; ``ClientError`` if it is refused.

    ``asked_epoch`` is that with which its client held the topic before, ``epoch`` the topic's.
    ``holder`` is the name of the only producer if there is one, ``waiting`` and ``connected``
    tell whether others wait to be it, and whether any are connected.
    """
    if mode is AccessMode.Shared:
        if holder is not None or waiting:
            raise ClientError(
                ServerError.ProducerBusy, f"The topic has an exclusive producer: {holder}"
            )
        return Access.SHARED
    if mode is AccessMode.Exclusive and (holder is not None or waiting or connected):
        there = f"an exclusive producer: {holder}" if holder is not None else "other producers"
        raise ClientError(ServerError.ProducerFenced, f"The topic has {there}")
    check_epoch(asked_epoch, epoch)  # before it waits: epochs only rise, so it would wait in vain
    if mode is AccessMode.WaitForExclusive and (holder is not None or waiting or connected):
        return Access.WAIT
    return Access.ALONE


def check_epoch(asked_epoch: int | None, epoch: int | None) -> None:
    """Refuse a former holder if there was another one after it, and an epoch that nobody had."""
    if asked_epoch is not None and asked_epoch > TOPIC_EPOCH_MAX:
        raise ClientError(
            ServerError.ProducerFenced,
            f"The topic had no epoch {asked_epoch}: the highest is {TOPIC_EPOCH_MAX}",
        )
    if asked_epoch is not None and epoch is not None and asked_epoch < epoch:
        raise ClientError(
            ServerError.ProducerFenced,
            f"The topic had another exclusive producer: its epoch is {epoch}, "
            f"the producer's {asked_epoch}",
        )


def next_epoch(asked_epoch: int | None, epoch: int | None) -> int:
    """The epoch of a new holder: the one it comes back with, or a new one."""
    if asked_epoch is not None:
        return asked_epoch
    return 0 if epoch is None else epoch + 1
