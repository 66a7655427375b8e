"""The identity of a message: in the protocol, in HTTP and as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.wire.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.wire import pulsar_pb2 as pb

_SIGNED_MAX = 2**63 - 1
_INDEX_MAX = 2**31 - 1
_number = r"(-?[0-9]{1,19})"
_text = re.compile(rf"{_number}:{_number}(?::{_number})?(?::{_number})?")


class MessageId(NamedTuple):
    """An entry's position, the topic partition, and the index in the batch; -1 where there is none.

    Without an index it is the whole entry. As the last message read, ``entry_id`` -1 stands before
    the first entry of the ledger, and -1:-1 before everything. Ids with an index compare correctly
    only among themselves; use ``position`` and ``batch_index`` one after the other.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    @property
    def position(self) -> Position:
        """The entry."""
        return Position(self.ledger_id, self.entry_id)

    def before(self) -> MessageId:
        """The message before; in a ledger's first entry it is the one before the ledger."""
        if self.batch_index > 0:
            return self._replace(batch_index=self.batch_index - 1)
        return self._replace(entry_id=max(self.entry_id - 1, -1), batch_index=-1)

    def __str__(self) -> str:
        """The shortest text that ``parse`` turns back into this id."""
        if self.partition >= 0:
            return f"{self.position}:{self.partition}:{self.batch_index}"
        return (
            f"{self.position}:{self.batch_index}" if self.batch_index >= 0 else f"{self.position}"
        )

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read ``ledger:entry``, ``ledger:entry:batch`` or the ``message_id`` column's
        ``ledger:entry:partition:batch``; ``ValueError``."""
        match = _text.fullmatch(text)
        if match is None:
            shown = text if len(text) <= 100 else f"{text[:100]}..."
            raise ValueError(
                f"'{shown}' is not a message id like ledger:entry or ledger:entry:batch"
            )
        ledger_id, entry_id, *rest = (int(part) for part in match.groups() if part is not None)
        partition, batch_index = rest if len(rest) == 2 else (-1, *(rest or (-1,)))
        if (
            (ledger_id < 0 and (ledger_id, entry_id) != EARLIEST)
            or min(entry_id, partition, batch_index) < -1
            or max(ledger_id, entry_id) > _SIGNED_MAX
            or max(partition, batch_index) > _INDEX_MAX
        ):
            raise ValueError(f"'{text}' is out of range for a message id")
        return cls(ledger_id, entry_id, partition, batch_index)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MessageId:
        """Read what a broker answers over HTTP."""
        indexes = (data.get(key, -1) for key in ("partitionIndex", "batchIndex"))
        return cls(data["ledgerId"], data["entryId"], *indexes)

    def to_json(self) -> dict[str, int]:
        """The form of the admin API."""
        return {
            **self.position.to_json(),
            "partitionIndex": self.partition,
            "batchIndex": self.batch_index,
        }

    def fill(self, data: pb.MessageIdData) -> None:
        """Write the protocol's form, where -1 is the largest unsigned number."""
        data.ledgerId = self.ledger_id % 2**64
        data.entryId = self.entry_id % 2**64
        data.partition = self.partition
        data.batch_index = self.batch_index


def position_of(data: pb.MessageIdData) -> Position:
    """The entry that a client names."""
    ledger_id, entry_id = data.ledgerId, data.entryId
    if ledger_id > _SIGNED_MAX:
        return EARLIEST
    if ledger_id == _SIGNED_MAX:
        return LATEST
    return Position(ledger_id, -1 if entry_id > _SIGNED_MAX else entry_id)
