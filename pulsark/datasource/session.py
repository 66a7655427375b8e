"""A local Spark session that suits Pulsark, and what makes it so.

``conf/spark-defaults.conf`` gives the same settings to ``spark-submit``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pulsark.datasource.listener import QueryListener

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_JARS = ("io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar")
IVY_DIR_VARIABLE = "PULSARK_IVY_DIR"

SETTINGS: Mapping[str, str] = {
    # Python workers lose about 40 ms a task over loopback TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # What a query wants of ids, keys and times is looked for, in place of reading everything.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Two jars do; the others that Delta names are for Kafka, Hadoop and Unity Catalog.
    "spark.jars.packages": DELTA_PACKAGE,
    "spark.jars.excludes": "org.apache.hadoop:*,io.delta:delta-kernel-*,io.unitycatalog:*",
    # The defaults are for a cluster; on one machine they make small queries take seconds.
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.showConsoleProgress": "false",
}


_listener: tuple[SparkSession, QueryListener] | None = None
"""The session that has our listener, and that listener."""


def session(
    app_name: str = "pulsark", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session with ``format("pulsark")`` and Delta; ``config`` overrides settings.

    The first call of a process starts the JVM, and downloads Delta's jars if this machine does
    not have them. Later calls return the same session. Its streaming queries acknowledge a batch as
    soon as it is finished. ``ConfigError`` without Java.
    """
    require_java()
    # The JVM looks for data sources with this Python; spark.pyspark.python does not help it.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from pulsark.datasource.listener import QueryListener
    from pulsark.datasource.source import PulsarkSource

    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.appName(app_name).master(master)
    for key, value in (session_settings() | dict(config or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    # Spark warns, at each query, of a source that it has found by itself and is told of, too.
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("pulsark"):
        spark.dataSource.register(PulsarkSource)
    global _listener
    if _listener is None or _listener[0] is not spark:
        _listener = spark, QueryListener()
        spark.streams.addListener(_listener[1])
    return spark


def session_settings() -> dict[str, str]:
    """``SETTINGS``, with Delta's jars from the local cache if they are there."""
    settings = dict(SETTINGS)
    jars = [ivy_dir() / "jars" / name for name in DELTA_JARS]
    if all(jar.is_file() for jar in jars):
        # Skips the resolver: no network, no forty lines on the terminal.
        del settings["spark.jars.packages"], settings["spark.jars.excludes"]
        settings["spark.jars"] = ",".join(map(str, jars))
    else:
        settings["spark.jars.ivy"] = str(ivy_dir())
    return settings


def ivy_dir() -> Path:
    """Where downloaded jars are kept: ``$PULSARK_IVY_DIR`` or the user's cache directory."""
    chosen = os.environ.get(IVY_DIR_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(cache) / "pulsark" / "ivy").absolute()


def require_java() -> None:
    """``ConfigError`` unless a JVM can be started."""
    home = os.environ.get("JAVA_HOME")
    if home is not None and not (Path(home) / "bin" / "java").exists():
        raise ConfigError(f"JAVA_HOME: there is no bin/java in {home}; Spark needs Java 17 or 21")
    if home is None and shutil.which("java") is None:
        raise ConfigError("Java is missing: Spark needs Java 17 or 21, on the PATH or in JAVA_HOME")
