"""What can go wrong in a Spark query, in words for the person who wrote it."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from pulsark.errors import PulsarkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Class = TypeVar("_Class", bound=type)


class DataSourceError(PulsarkError):
    """A query cannot go on; the first line of the message says why and names the cure."""

    def __init__(self, message: str) -> None:
        super().__init__(f"pulsark: {message}")


class OptionError(DataSourceError):
    """An option is unknown, missing or has a bad value."""


class TopicNotFoundError(DataSourceError):
    """A topic of the query does not exist, or was deleted (and perhaps created again)."""


class NotSealedError(DataSourceError):
    """A topic has no table yet, because nothing of it is sealed."""


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


class SchemaChangedError(DataSourceError):
    """The topic's schema has grown beyond the columns that the query began with."""


def with_short_tracebacks(cls: _Class) -> _Class:
    """Let errors leave a class's public methods without the frames below them.

    Spark shows the whole traceback of a Python source above the message. Those frames are ours; who
    reads the message has made none of them. Other exceptions are defects and keep all.
    """
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _shortened(method))
    return cls


def _shortened(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: Any, **named: Any) -> Iterator[Any]:
            try:
                yield from method(*args, **named)
            except PulsarkError as error:
                raise _bare(error) from None

        return generate

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            found = method(*args, **named)
        except PulsarkError as error:
            raise _bare(error) from None
        return _iterated(found) if inspect.isgenerator(found) else found

    return call


def _iterated(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except PulsarkError as error:
        raise _bare(error) from None


def _bare(error: PulsarkError) -> PulsarkError:
    error.__cause__ = None
    return error.with_traceback(None)
