"""Topic patterns of regex subscriptions, matched in time linear in the name.

The expression comes from the network: Python's own matcher could be kept busy by it for ever.
Pulsar's brokers use RE2 syntax too; clients match with what their language has, so an expression
that RE2 does not know is left to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsark.errors import ClientError, ServerError
from pulsark.limits import TOPIC_PATTERN_MEMORY_BYTES
from pulsark.wire.topic_name import TopicName


class TopicPattern:
    """A pattern for full matches with ``tenant/namespace/topic``, whatever the partition."""

    def __init__(self, text: str, max_chars: int) -> None:
        """Raise ``ClientError(NotAllowedError)`` if the broker does not evaluate ``text``."""
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
            self._expression: Any = re2.compile(text.split("://", 1)[-1], options)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace")
            raise ClientError(
                ServerError.NotAllowedError, f"RE2 does not take the topic pattern: {reason}"
            ) from error

    def matches(self, topic: str) -> bool:
        """Whether the pattern takes a topic, given by its full name."""
        name = TopicName.parse(topic).base
        return self._expression.fullmatch(str(name).split("://", 1)[1]) is not None

    def select(self, topics: Iterable[str]) -> list[str]:
        """The topics that the pattern takes, in their order."""
        return [topic for topic in topics if self.matches(topic)]
