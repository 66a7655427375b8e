"""A Spark application that streams a topic into another one; the tests kill and restart it.

At one step of its first batch it makes a file and waits to be killed: ``written`` (a task has its
files), ``committing`` (the driver is about to publish), ``published`` (it has), or ``never``.

    python write_driver.py SERVICE_URL ADMIN_URL SOURCE SINK CHECKPOINT STEP MARKER
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pulsark.datasource.session import session_settings
from pulsark.datasource.sink import PulsarkStreamWriter, Sink, sink_for
from pulsark.datasource.source import PulsarkSource

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


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
        result = super().write(iterator)
        self._reach("written")
        return result

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._reach("committing")
        super().commit(messages, batchId)
        self._reach("published")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


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
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in session_settings().items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.extraJavaOptions", QUICK_START)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(StoppingSource)
    urls = {"serviceUrl": service_url, "adminUrl": admin_url}
    query = (
        spark.readStream.format("pulsark")
        .options(**urls, topic=source, startingOffsets="earliest", maxRowsPerTrigger=200)
        .options(columns="value,key")
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
