"""A schema as clients send it: a type, a definition and properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import SCHEMA_BYTES_MAX, SCHEMA_PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

_AUTO_CONSUME_ON_THE_WIRE = 21
_MESSAGE_CHARS_MAX = 500


class SchemaError(ClientError):
    """A schema that a topic does not take. Clients know one code for all the reasons."""

    def __init__(self, message: str) -> None:
        # It may quote the definition, where a name can be of any length and of half characters.
        message = message.encode("utf-8", "replace").decode()
        if len(message) > _MESSAGE_CHARS_MAX:
            message = f"{message[: _MESSAGE_CHARS_MAX - 3]}..."
        super().__init__(ServerError.IncompatibleSchema, message)


class InvalidSchemaDataError(SchemaError):
    """The definition is not one of its type."""


class IncompatibleSchemaError(SchemaError):
    """The definition is fine, but not beside those that the topic has."""


class SchemaType(Enum):
    """The types with the names and numbers of Pulsar's admin API.

    A negative number is not stored with a topic, or has no meaning for a broker.
    """

    AUTO_PUBLISH = -4
    AUTO_CONSUME = -3
    AUTO = -2
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20

    @classmethod
    def from_wire(cls, number: int) -> SchemaType:
        """The type that ``Schema.Type`` of the binary protocol means.

        ``InvalidSchemaDataError`` if there is none.
        """
        if number == _AUTO_CONSUME_ON_THE_WIRE:
            return cls.AUTO_CONSUME
        try:
            return cls(number)
        except ValueError:
            raise InvalidSchemaDataError(f"Schema type {number} is unknown") from None

    @property
    def on_the_wire(self) -> int:
        """The binary protocol's number; what it does not know is ``None`` (0) there."""
        if self is SchemaType.AUTO_CONSUME:
            return _AUTO_CONSUME_ON_THE_WIRE
        number: int = self.value
        return max(number, 0)


@dataclass(frozen=True, slots=True)
class SchemaData:
    """A schema; ``data`` is the definition in the encoding of its type."""

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Bound the size. Raises ``InvalidSchemaDataError``."""
        if len(self.data) > SCHEMA_BYTES_MAX:
            raise InvalidSchemaDataError(
                f"The schema's definition has {len(self.data)} bytes; "
                f"at most {SCHEMA_BYTES_MAX} are allowed"
            )
        texts = [*self.properties.keys(), *self.properties.values()]
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if size > SCHEMA_PROPERTIES_BYTES_MAX:
            raise InvalidSchemaDataError(
                f"The schema's properties have {size} bytes; "
                f"at most {SCHEMA_PROPERTIES_BYTES_MAX} are allowed"
            )
