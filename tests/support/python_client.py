"""The official Python client, connected to a standalone."""

from __future__ import annotations

import json
import subprocess
import sys
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


_TABLE_VIEW = """
import json, os, sys, pulsar
url, topic = sys.argv[1:]
view = pulsar.Client(url).create_table_view(topic, "view", pulsar.schema.BytesSchema())
found = {}
view.for_each(lambda key, value: found.update({key: value.decode()}))
print(json.dumps(found), flush=True)
os._exit(0)
"""


def table_view(standalone: Served, topic: str) -> dict[str, str]:
    """Return what a table view has when it was made.

    It lives in a process that never closes it: a client that is closed soon after its table view
    sometimes ends its process (segmentation fault in the native part).
    """
    command = [sys.executable, "-c", _TABLE_VIEW, standalone.service_url, topic]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found
