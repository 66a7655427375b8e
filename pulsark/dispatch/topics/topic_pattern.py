"""Topic patterns of regex subscriptions, matched in time linear in the name.

The expression comes from the network: Python's own matcher could be kept busy by it for ever.
Pulsar's brokers use RE2 syntax too; clients match with what their language has, so an expression
that RE2 does not know is left to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.patterns import full_matcher
from pulsark.wire.topic_name import without_partition

if TYPE_CHECKING:
    from collections.abc import Iterable


class TopicPattern:
    """A pattern for full matches with ``tenant/namespace/topic``, whatever the partition."""

    def __init__(self, text: str, max_chars: int) -> None:
        """Raise ``ClientError(NotAllowedError)`` if the broker does not evaluate ``text``."""
        self.text = text
        if len(text) > max_chars:
            raise ClientError(
                ServerError.NotAllowedError,
                f"The topic pattern has {len(text)} characters; subscriptionPatternMaxLength "
                f"is {max_chars}",
            )
        try:
            self._fullmatch = full_matcher(text.split("://", 1)[-1])
        except ValueError as error:
            raise ClientError(
                ServerError.NotAllowedError, f"RE2 does not take the topic pattern: {error}"
            ) from error

    def select(self, topics: Iterable[str]) -> list[str]:
        """The topics that the pattern takes, given by their full names, in their order."""
        fullmatch = self._fullmatch
        return [topic for topic in topics if fullmatch(_asked_about(topic)) is not None]


def _asked_about(topic: str) -> bytes:
    """What a pattern is about: the name without its domain and its partition."""
    return without_partition(topic.partition("://")[2]).encode()
