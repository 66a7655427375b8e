"""Topic patterns of regex subscriptions, matched in time linear in the name.

The expression comes from the network: Python's own matcher could be kept busy by it for ever.
Pulsar's brokers use RE2 syntax too; clients match with what their language has, so an expression
that RE2 does not know is left to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsark.errors import ClientError, ServerError
from pulsark.limits import TOPIC_PATTERN_MEMORY_BYTES
from pulsark.wire.topic_name import without_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class TopicPattern:
    """A pattern for full matches with ``tenant/namespace/topic``, whatever the partition."""

    def __init__(self, text: str, max_chars: int) -> None:
        """Raise ``ClientError(NotAllowedError)`` if the broker does not evaluate ``text``."""
        self.text = text
        import re2  # loaded when the first pattern comes

        if len(text) > max_chars:
            raise ClientError(
                ServerError.NotAllowedError,
                f"The topic pattern has {len(text)} characters; subscriptionPatternMaxLength "
                f"is {max_chars}",
            )
        options = re2.Options()
        options.log_errors = False
        options.max_mem = TOPIC_PATTERN_MEMORY_BYTES
        try:
            # On bytes, because for text the matcher counts characters of each name it is given.
            expression = re2.compile(text.split("://", 1)[-1].encode(), options)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace")
            raise ClientError(
                ServerError.NotAllowedError, f"RE2 does not take the topic pattern: {reason}"
            ) from error
        self._fullmatch: Callable[[bytes], Any] = expression.fullmatch

    def select(self, topics: Iterable[str]) -> list[str]:
        """The topics that the pattern takes, given by their full names, in their order."""
        fullmatch = self._fullmatch
        return [topic for topic in topics if fullmatch(_asked_about(topic)) is not None]


def _asked_about(topic: str) -> bytes:
    """What a pattern is about: the name without its domain and its partition."""
    return without_partition(topic.partition("://")[2]).encode()
