"""Values of protobuf fields: the ordinary, the borders and the absurd."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (0, 1, 2, 3, 127, 128, 255, 1000, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**32)
LARGE_INTEGERS = (2**53, 253_402_300_800_000, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
BITS = {
    FieldDescriptor.TYPE_INT32: (32, True),
    FieldDescriptor.TYPE_UINT32: (32, False),
    FieldDescriptor.TYPE_INT64: (64, True),
    FieldDescriptor.TYPE_UINT64: (64, False),
}
TEXTS = (
    "", "a", "key", "é" * 70, "\0", "a/b", "../..", "%2e%2e", "'; DROP TABLE node;--",
    "\ud7ff\uffff", "x" * 300, "x" * 5000, "persistent://a/b/../../c", "[", "{}", "1e999",
    "\r\nX: y",
)  # fmt: skip
REPEATS_MAX = 40


def integer(rng: Random, bits: int, signed: bool) -> int:
    """Most often small, sometimes a border of any width, folded into the field's range."""
    value = rng.choice(INTEGERS) if rng.random() < 0.8 else rng.choice(LARGE_INTEGERS)
    if rng.random() < 0.1:
        value = -value - 1
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def text(rng: Random) -> str:
    """A string that some part of a broker may take for something else."""
    return rng.choice(TEXTS)


def data(rng: Random, longest: int = 200) -> bytes:
    """Random bytes; most often few of them."""
    return rng.randbytes(rng.randrange(longest) if rng.random() < 0.7 else rng.randrange(8))


def fill(rng: Random, message: Message, depth: int = 0, chance: float = 0.6) -> None:
    """Set fields of a message at random; required ones nearly always."""
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        if rng.random() < (0.98 if field.is_required else chance / (1 + depth)):
            fill_field(rng, message, field, depth)


def fill_field(rng: Random, message: Message, field: FieldDescriptor, depth: int = 0) -> None:
    """Give one field of a message a random value, whatever it has."""
    if field.message_type is not None:
        if depth > 4:
            return
        if field.is_repeated:
            for _ in range(_repeats(rng)):
                fill(rng, getattr(message, field.name).add(), depth + 1)
        else:
            child = getattr(message, field.name)
            child.SetInParent()
            fill(rng, child, depth + 1)
    elif field.is_repeated:
        values = getattr(message, field.name)
        del values[:]
        values.extend(scalar(rng, field) for _ in range(_repeats(rng)))
    else:
        setattr(message, field.name, scalar(rng, field))


def scalar(rng: Random, field: FieldDescriptor) -> object:
    """A random value of a field's type."""
    if field.type in BITS:
        return integer(rng, *BITS[field.type])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        numbers: Sequence[int] = [value.number for value in field.enum_type.values]
        return rng.choice(numbers)
    if field.type == FieldDescriptor.TYPE_STRING:
        return text(rng)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return data(rng)
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return rng.choice((0.0, -1.5, float("inf"), float("nan")))
    raise TypeError(f"no values for fields of type {field.type}")


def _repeats(rng: Random) -> int:
    return rng.choice((0, 1, 1, 1, 2, 3, rng.randrange(REPEATS_MAX)))
