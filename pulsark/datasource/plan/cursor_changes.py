"""Rows written to the view ``cursors``, and what they ask the broker to do. Pure.

Everything here can be done twice: Spark repeats tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsark.datasource.options.errors import OptionError
from pulsark.errors import ClientError
from pulsark.wire.message_id import MessageId
from pulsark.wire.position import EARLIEST, LATEST
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ACTIONS = ("seek", "ack", "create", "delete", "restore")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "subscription": ("string",),
    "action": ("string",),
    "message_id": ("string",),
    "timestamp": ("timestamp", "bigint", "string"),
}
"""Columns that may be written, and their types in Spark."""
ACKS_A_REQUEST = 1000


@dataclass(frozen=True, slots=True)
class SubscriptionChange:
    """One request about a subscription: the end of its path, its body, what else is fine."""

    topic: str
    subscription: str
    what: str
    method: str
    path: str = ""
    body: Any = None
    fine: tuple[int, ...] = ()


def check_columns(types: Mapping[str, str], topic: str | None) -> None:
    """Check the columns of a DataFrame by Spark's types; ``OptionError``."""
    for name, found in types.items():
        if name not in COLUMNS:
            raise OptionError(
                f"column '{name}' cannot be written to the view cursors; it has the columns "
                f"{', '.join(COLUMNS)}"
            )
        if found not in COLUMNS[name]:
            raise OptionError(f"column '{name}' is {found}, and must be {COLUMNS[name][0]}")
    needed = ["subscription", "action"] if topic else ["topic", "subscription", "action"]
    missing = [name for name in needed if name not in types]
    if missing:
        raise OptionError(
            f"column '{missing[0]}' is missing: a change of a cursor has {', '.join(needed)}, and "
            "message_id or timestamp"
        )


def changes(rows: Iterable[Mapping[str, Any]], topic: str | None) -> Iterator[SubscriptionChange]:
    """What rows ask for, in their order; acknowledgements that follow each other together.

    ``topic`` is for rows without one. ``OptionError`` names the column that is wrong.
    """
    acks: list[dict[str, int]] = []
    whose: tuple[str, str] = "", ""
    for row in rows:
        target = _target(row, topic)
        action = row.get("action")
        if acks and (action != "ack" or target != whose or len(acks) == ACKS_A_REQUEST):
            yield _acks(whose, acks)
            acks = []
        if action == "ack":
            whose = target
            acks.append(_message_id(row, action))
        else:
            yield _change(row, action, *target)
    if acks:
        yield _acks(whose, acks)


def _target(row: Mapping[str, Any], topic: str | None) -> tuple[str, str]:
    name, subscription = row.get("topic") or topic, row.get("subscription")
    if not name or not subscription:
        missing = "subscription" if name else "topic"
        raise OptionError(f"column '{missing}' is empty in a row written to the view cursors")
    partition = _partition(row)
    try:
        parsed = TopicName.parse(name)
        return str(parsed.with_partition(partition) if partition >= 0 else parsed), subscription
    except (ClientError, ValueError) as error:
        raise OptionError(f"columns 'topic' and 'partition': {error}") from None


def _partition(row: Mapping[str, Any]) -> int:
    """Return the partition that a row names, in its column or in its message id; -1 if none."""
    found = row.get("partition")
    partition = -1 if found is None else found
    try:
        named = MessageId.parse(row.get("message_id") or "").partition
    except ValueError:
        return partition
    if -1 < named != partition > -1:
        raise OptionError(
            f"column 'partition' is {partition}, and column 'message_id' names partition {named}"
        )
    return max(partition, named)


def _acks(whose: tuple[str, str], acks: list[dict[str, int]]) -> SubscriptionChange:
    return SubscriptionChange(*whose, "acknowledgement", "POST", "/acknowledge", acks)


def _change(
    row: Mapping[str, Any], action: object, topic: str, subscription: str
) -> SubscriptionChange:
    if action == "delete":
        return SubscriptionChange(topic, subscription, "deletion", "DELETE", fine=(404,))
    if action == "restore":
        path = f"/restore/{_time(row, action)}"
        return SubscriptionChange(topic, subscription, "restoration", "POST", path)
    if action == "create":
        place = _message_id(row, action) if row.get("message_id") else LATEST.to_json()
        return SubscriptionChange(topic, subscription, "creation", "PUT", "", place, (409,))
    if action == "seek":
        if row.get("timestamp") is not None:
            path = f"/resetcursor/{_time(row, action)}"
            return SubscriptionChange(topic, subscription, "reset", "POST", path)
        place = _message_id(row, action)
        return SubscriptionChange(topic, subscription, "reset", "POST", "/resetcursor", place)
    raise OptionError(f"column 'action' is {action!r}; it is one of {', '.join(ACTIONS)}")


def _message_id(row: Mapping[str, Any], action: object) -> dict[str, int]:
    text = row.get("message_id")
    if text is None:
        other = " or timestamp" if action == "seek" else ""
        raise OptionError(f"column 'message_id'{other} is empty, and {action} needs it")
    if action != "ack" and text in ("earliest", "latest"):
        return (EARLIEST if text == "earliest" else LATEST).to_json()
    try:
        found = MessageId.parse(text)
    except ValueError as error:
        raise OptionError(f"column 'message_id': {error}") from None
    if found.entry_id < 0:
        raise OptionError(f"column 'message_id': '{text}' names no message")
    index = {"batchIndex": found.batch_index} if found.batch_index >= 0 else {}
    return {**found.position.to_json(), **index}


def _time(row: Mapping[str, Any], action: object) -> int:
    from pulsark.datasource.options.option_values import moment

    found = row.get("timestamp")
    if found is None:
        raise OptionError(f"column 'timestamp' is empty, and {action} needs it")
    if isinstance(found, datetime):
        # Spark gives times without a zone in the session's own, which is the process's.
        return round((found if found.tzinfo else found.astimezone(UTC)).timestamp() * 1000)
    return moment("timestamp", str(found)).ms
