"""A Spark application that streams a topic into another one; the tests kill and restart it.

At one step of its first batch it makes a file and waits to be killed: ``writing`` (a task has its
rows), ``written`` (a task has its files), ``committing`` (the driver is about to publish),
``published`` (it has), ``aborting`` (a task has failed, and the driver has deleted the files of one
of the others), or ``never``.

    python write_driver.py SERVICE_URL ADMIN_URL SOURCE SINK CHECKPOINT STEP MARKER
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pulsark.datasource.source import PulsarkSource
from pulsark.datasource.write.sink import PulsarkStreamWriter, Sink, sink_for
from tests.spark.driver_session import driver_session

TASKS = 3
"""Of each batch."""


class StoppingWriter(PulsarkStreamWriter):
    """Comes to its end at a step: fails there, or if there is a marker, waits to be killed.

    Like one that is killed it does not clean up after itself.
    """

    def __init__(self, sink: Sink, step: str, marker: str) -> None:
        super().__init__(sink)
        self._step = step
        self._marker = marker

    def _reach(self, step: str) -> None:
        if self._step == step:
            if not self._marker:
                raise RuntimeError(f"stopped: {step}")
            Path(self._marker).touch()
            time.sleep(600)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        result = super().write(self._ending_at(iterator, "writing"))
        if self._step == "aborting" and TaskContext.get().partitionId() == TASKS - 1:  # type: ignore[union-attr]
            raise RuntimeError("so that the others are aborted")
        self._reach("written")
        return result

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._reach("committing")
        super().commit(messages, batchId)
        self._reach("published")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._step == "aborting":
            super().abort([message for message in messages if message][:1], batchId)
            self._reach("aborting")

    def _ending_at(self, batches: Iterator[Any], step: str) -> Iterator[Any]:
        yield from batches
        self._reach(step)


class StoppingSource(PulsarkSource):
    """Writes with the above; options ``stopAt`` and ``marker``."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StoppingWriter:
        options = dict(self.options)
        step, marker = options.pop("stopat"), options.pop("marker", "")
        return StoppingWriter(sink_for(options, schema, overwrite), step, marker)


def main(
    service_url: str, admin_url: str, source: str, sink: str, place: str, step: str, marker: str
) -> None:
    """Run until everything is written, or killed."""
    spark = driver_session()
    spark.dataSource.register(StoppingSource)
    urls = {"serviceUrl": service_url, "adminUrl": admin_url}
    query = (
        spark.readStream.format("pulsark")
        .options(**urls, topic=source, startingOffsets="earliest", maxRowsPerTrigger=200)
        .options(columns="value,key", minPartitions=TASKS)
        .load()
        .writeStream.format("stopping")
        .options(**urls, topic=sink, checkpointLocation=place, numPartitions=3, createTopic="true")
        .options(stopAt=step, marker=marker)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
