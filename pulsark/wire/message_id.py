"""The identity of a message, as clients see it."""

from __future__ import annotations

from typing import NamedTuple

from pulsark.wire import pulsar_pb2 as pb

_UNSIGNED = 2**64 - 1
_SIGNED_MAX = 2**63 - 1


class MessageId(NamedTuple):
    """Ordered by ledger, entry, partition, place in the batch; -1 where there is none.

    ``str`` gives ``ledger:entry:partition:batch``.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.batch_index}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read two to four numbers with colons between; ``ValueError`` for anything else."""
        parts = text.split(":")
        if not 2 <= len(parts) <= 4:
            raise ValueError(f"A message id looks like ledger:entry:partition:batch, not {text!r}")
        numbers = [_number(part, text) for part in parts]
        if (
            min(numbers) < -1
            or max(numbers[:2]) > _SIGNED_MAX
            or max(numbers[2:], default=0) > 2**31 - 1
        ):
            raise ValueError(f"A number of the message id {text!r} is out of range")
        return cls(*numbers)

    @classmethod
    def from_data(cls, data: pb.MessageIdData) -> MessageId:
        """Read the protocol's form, where -1 is the largest unsigned number."""
        return cls(_signed(data.ledgerId), _signed(data.entryId), data.partition, data.batch_index)

    def to_data(self) -> pb.MessageIdData:
        """The protocol's form."""
        return pb.MessageIdData(
            ledgerId=self.ledger_id & _UNSIGNED,
            entryId=self.entry_id & _UNSIGNED,
            partition=self.partition,
            batch_index=self.batch_index,
        )


EARLIEST = MessageId(-1, -1)
LATEST = MessageId(_SIGNED_MAX, _SIGNED_MAX)


def _signed(value: int) -> int:
    return value if value <= _SIGNED_MAX else value - 2**64


def _number(part: str, text: str) -> int:
    digits = part.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise ValueError(f"{part!r} in the message id {text!r} is not a number")
    return int(part)
