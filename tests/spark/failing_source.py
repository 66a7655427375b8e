"""A data source for tests of faults: ``format("pulsark")``, until something is killed or deleted.

``killAt`` (``read`` or ``write``) kills a Python worker in the middle of a task, once, which the
file ``marker`` remembers. ``deleteFirst`` is the address of a topic that is deleted when the tasks
are done, before the driver publishes.
"""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pulsark.datasource.source import PulsarkSource
from pulsark.datasource.write.sink import PulsarkStreamWriter, PulsarkWriter, Sink, sink_for


def kill_once(marker: str) -> None:
    """End this worker as an operator or the kernel would; a task that runs again goes on."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def killing(rows: Iterator[Any], marker: str) -> Iterator[Any]:
    """What comes, until the worker is killed behind the first piece."""
    for batch in rows:
        yield batch
        if marker:
            kill_once(marker)


class FailingWriter(PulsarkWriter):
    """Of a batch."""

    def __init__(self, sink: Sink, marker: str, delete: str) -> None:
        super().__init__(sink)
        self._marker = marker
        self._delete = delete

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(killing(iterator, self._marker))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._delete:
            request = urllib.request.Request(self._delete, method="DELETE")
            urllib.request.urlopen(request, timeout=30).close()
        super().commit(messages)


class FailingStreamWriter(PulsarkStreamWriter):
    """Of a stream."""

    def __init__(self, sink: Sink, marker: str) -> None:
        super().__init__(sink)
        self._marker = marker

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(killing(iterator, self._marker))


class FailingSource(PulsarkSource):
    """Takes the options above beside its own."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def _given(self) -> tuple[dict[str, str], str, str, str]:
        options = dict(self.options)
        own = [options.pop(name, "") for name in ("killat", "marker", "deletefirst")]
        return options, own[0], own[1], own[2]

    def schema(self) -> StructType | str:
        return PulsarkSource(self._given()[0]).schema()

    def streamReader(self, schema: StructType) -> Any:
        options, kill_at, marker, _ = self._given()
        reader = PulsarkSource(options).streamReader(schema)
        kind = type(reader)

        class FailingReader(kind):  # type: ignore[misc, valid-type]
            def read(self, partition: Any) -> Iterator[Any]:
                yield from killing(super().read(partition), marker)

        if kill_at == "read":
            reader.__class__ = FailingReader
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> FailingWriter:
        options, _, marker, delete = self._given()
        return FailingWriter(sink_for(options, schema, overwrite), marker, delete)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FailingStreamWriter:
        options, kill_at, marker, _ = self._given()
        return FailingStreamWriter(
            sink_for(options, schema, overwrite), marker if kill_at == "write" else ""
        )
