"""Keys and values that clients attach to what they create, bounded before anything is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import (
    CLIENT_METADATA_CHARS_MAX,
    SUBSCRIPTION_PROPERTIES_BYTES_MAX,
    TOPIC_PROPERTIES_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.wire import pulsar_pb2 as pb


def client_metadata(what: str, given: Iterable[pb.KeyValue]) -> dict[str, str]:
    """What a client says of its producer or consumer; ``ClientError`` if it is too much."""
    if sum(len(pair.key) + len(pair.value) for pair in given) > CLIENT_METADATA_CHARS_MAX:
        raise ClientError(
            ServerError.MetadataError,
            f"{what} metadata is longer than {CLIENT_METADATA_CHARS_MAX} characters",
        )
    return {pair.key: pair.value for pair in given}


def check_subscription_properties(given: Iterable[pb.KeyValue]) -> None:
    """Raise ``ClientError`` if they are too many or too long."""
    pairs = list(given)
    if len(pairs) > TOPIC_PROPERTIES_MAX:
        raise ClientError(
            ServerError.MetadataError,
            f"A subscription has at most {TOPIC_PROPERTIES_MAX} properties",
        )
    size = sum(len(text.encode()) for pair in pairs for text in (pair.key, pair.value))
    if size > SUBSCRIPTION_PROPERTIES_BYTES_MAX:
        raise ClientError(
            ServerError.MetadataError,
            f"The properties of a subscription have at most {SUBSCRIPTION_PROPERTIES_BYTES_MAX} "
            f"bytes; {size} came",
        )
