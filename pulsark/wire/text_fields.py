"""Text in received messages.

Protobuf returns a proto2 string that is not UTF-8 as ``bytes``, though ``str`` is declared. In a
command that is an error of the peer. In metadata it is not: some clients allow any bytes as a key,
and the entry is delivered unchanged.
"""

from __future__ import annotations

from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor

from pulsark.errors import ProtocolError

TextPlan = tuple[tuple[str, bool, "TextPlan | None"], ...]
"""Fields that are or contain text: name, repeated, and the plan of a message or ``None``."""


def text_plan(message: Any, _outer: tuple[str, ...] = ()) -> TextPlan:
    """The text fields of a message type, so that a check visits nothing else."""
    fields: list[tuple[str, bool, TextPlan | None]] = []
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            fields.append((field.name, field.is_repeated, None))
        elif field.message_type is not None and field.message_type.full_name not in _outer:
            inner = text_plan(field.message_type, (*_outer, message.full_name))
            if inner:
                fields.append((field.name, field.is_repeated, inner))
    return tuple(fields)


def has_broken_text(message: Any, plan: TextPlan, texts_max: int) -> bool:
    """Whether a received message has a string that is not UTF-8.

    ``ProtocolError`` if a list has more than ``texts_max`` strings: to look at them takes long.
    """
    for name, repeated, inner in plan:
        value = getattr(message, name)
        if repeated and len(value) > texts_max:
            raise ProtocolError(f"A command with {len(value)} {name}")
        if inner is None:
            for text in value if repeated else (value,):
                if not isinstance(text, str):
                    return True
        elif repeated:
            for item in value:
                if has_broken_text(item, inner, texts_max):
                    return True
        elif message.HasField(name) and has_broken_text(value, inner, texts_max):
            return True
    return False


def as_text(value: str) -> str:
    """A received string, with replacement characters where it is not UTF-8."""
    return value if isinstance(value, str) else cast("bytes", value).decode("utf-8", "replace")


def as_bytes(value: str) -> bytes:
    """A received string, byte for byte."""
    return value.encode() if isinstance(value, str) else cast("bytes", value)
