"""``python -m tests.support.spark_archive FILE``: store Spark's classes in the form a JVM maps.

A JVM with ``-XX:SharedArchiveFile=FILE`` starts a session in two thirds of the time. One whose
classes differ ignores the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.spark.driver_session import driver_session


def main() -> None:
    """Run what most tests run, and let the JVM write the file when it ends."""
    target = Path(sys.argv[1]).absolute()
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={partial} -Xlog:disable"
    spark: Any = driver_session()
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.createDataFrame([(1, "a", b"x")], "a int, b string, c binary")
        rows.write.format("delta").save(f"{folder}/table")
        table = spark.read.format("delta").load(f"{folder}/table")
        table.groupBy("a").count().collect()
        query = spark.readStream.format("delta").load(f"{folder}/table").writeStream
        query = query.trigger(availableNow=True).option("checkpointLocation", f"{folder}/state")
        query.format("delta").start(f"{folder}/copy").awaitTermination()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    partial.rename(target)


if __name__ == "__main__":
    main()
