"""Message ids of the protocol and positions of the storage."""

from __future__ import annotations

from pulsark.storage.position import EARLIEST, LATEST, Position
from pulsark.wire import pulsar_pb2 as pb

_SIGNED_MAX = 2**63 - 1


def position_of(message_id: pb.MessageIdData) -> Position:
    """A position from the wire, where -1 arrives as the largest unsigned number."""
    ledger_id, entry_id = message_id.ledgerId, message_id.entryId
    if ledger_id > _SIGNED_MAX:
        return EARLIEST
    if ledger_id == _SIGNED_MAX:
        return LATEST
    return Position(ledger_id, -1 if entry_id > _SIGNED_MAX else entry_id)


def fill_message_id(message_id: pb.MessageIdData, position: Position, batch_index: int) -> None:
    """Write a position into a message of the protocol."""
    message_id.ledgerId = position.ledger_id % 2**64
    message_id.entryId = position.entry_id % 2**64
    message_id.batch_index = batch_index
