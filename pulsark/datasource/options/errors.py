"""What can go wrong in a Spark query, in words for the person who wrote it."""

from __future__ import annotations

from pulsark.errors import PulsarkError


class DataSourceError(PulsarkError):
    """A query cannot go on; the first line of the message says why and names the cure."""

    def __init__(self, message: str) -> None:
        super().__init__(f"pulsark: {message}")


class OptionError(DataSourceError):
    """An option is unknown, missing or has a bad value."""


class TopicNotFoundError(DataSourceError):
    """A topic of the query does not exist, or was deleted (and perhaps created again)."""


class DataLossError(DataSourceError):
    """Messages that the query still had to read are no longer there."""


class UnavailableError(DataSourceError):
    """The broker did not answer, or not completely, in the time allowed."""


class SubscriptionInUseError(DataSourceError):
    """Another query follows its stream with the same subscription."""


class ConflictError(DataSourceError):
    """Another writer was faster: the request no longer fits the state of the topic."""


class TopicSchemaError(DataSourceError):
    """What is written has a schema that the topic does not take."""
