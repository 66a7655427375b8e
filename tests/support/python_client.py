"""The official Python client, connected to a standalone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pulsar


class Served(Protocol):
    """What clients connect to."""

    @property
    def service_url(self) -> str: ...


def connect(
    standalone: Served, *, url: str | None = None, operation_timeout_seconds: int = 10
) -> pulsar.Client:
    """A client that logs errors only. Whoever asks for it closes it."""
    return pulsar.Client(
        url or standalone.service_url,
        operation_timeout_seconds=operation_timeout_seconds,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


@contextmanager
def connected(
    standalone: Served, *, url: str | None = None, operation_timeout_seconds: int = 10
) -> Iterator[pulsar.Client]:
    """A client that is closed at the end."""
    client = connect(standalone, url=url, operation_timeout_seconds=operation_timeout_seconds)
    try:
        yield client
    finally:
        try:
            client.close()
        except pulsar.NotConnected:
            client.shutdown()  # a producer that is connecting again cannot say good-bye
