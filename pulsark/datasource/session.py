"""A Spark session that suits Pulsark, on this machine or by Spark Connect."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsark.datasource.spark_defaults import (
    SETTINGS,
    SPARK_VERSIONS,
    delta_package,
    spark_version,
)
from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from pulsark.datasource.read.listener import QueryListener

IVY_DIR_VARIABLE = "PULSARK_IVY_DIR"
OF_A_SESSION = (
    "spark.sql.execution.arrow.pyspark.enabled",
    "spark.sql.python.filterPushdown.enabled",
)
"""Settings that a session has of its own; the others are those of its server."""

CONNECT_MODULES = ("grpc", "grpc_status", "zstandard")
REMOTE_VARIABLE = "SPARK_REMOTE"

_listener: tuple[SparkSession, QueryListener] | None = None
"""The session that has our listener, and that listener."""


def session(
    app_name: str = "pulsark",
    *,
    master: str = "local[*]",
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session with ``format("pulsark")`` and Delta; ``config`` overrides settings.

    The first call of a process starts the JVM, and downloads Delta's jars if this machine does
    not have them. Later calls return the same session; without ``config`` they leave its settings
    as they are. Its streaming queries acknowledge a batch as soon as it is finished.
    ``ConfigError`` without Java.

    A thread that writes has to call this first: Spark looks for formats of Python in the session
    that is active in the thread, and a new thread has none.

    ``remote``, or else ``$SPARK_REMOTE``, makes it a session of Spark Connect. ``local[2]`` starts
    a server here, with all settings; ``sc://host:15002`` is for a server that runs somewhere, with
    this package and jars and settings of its own, and needs no Java here.
    """
    require_pyspark()
    remote = remote or os.environ.get(REMOTE_VARIABLE)
    settings = session_settings()
    if remote is not None:
        require_connect()
    if remote is not None and remote.startswith("sc://"):
        settings = {key: settings[key] for key in OF_A_SESSION}
    else:
        require_java()
    # The JVM looks for data sources with this Python; spark.pyspark.python does not help it.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    if config is None and remote is None and _listener is not None:
        known = _listener[0]
        if SparkSession._instantiatedSession is known:  # it was not stopped
            _activate(known)
            return known
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.appName(app_name)
    builder = builder.master(master) if remote is None else builder.remote(remote)
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # The client of Connect sets again what the server has begun with, and may not.
        warnings.filterwarnings("ignore", "Failed to set spark", UserWarning)
        spark = builder.getOrCreate()
    if ".connect." not in type(spark).__module__:
        _settle(spark)
        _activate(spark)
    return spark


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread: a write finds its format by that alone."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def _settle(spark: SparkSession) -> None:
    """Register the source and our listener with a classic session.

    Over Connect the server finds the source, and the client would keep the process alive for a
    listener.
    """
    from pulsark.datasource.read.listener import QueryListener
    from pulsark.datasource.source import PulsarkSource

    # Spark warns, at each query, of a source that it has found by itself and is told of, too.
    if not spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("pulsark"):
        spark.dataSource.register(PulsarkSource)
    global _listener
    if _listener is None or _listener[0] is not spark:
        _listener = spark, QueryListener()
        spark.streams.addListener(_listener[1])


def session_settings() -> dict[str, str]:
    """``SETTINGS`` for the Spark that is installed, with Delta's jars from the local cache if they
    are there."""
    settings = {**SETTINGS, "spark.jars.packages": delta_package()}
    jars = [ivy_dir() / "jars" / name for name in delta_jars()]
    if all(jar.is_file() for jar in jars):
        # Skips the resolver: no network, no forty lines on the terminal.
        del settings["spark.jars.packages"], settings["spark.jars.excludes"]
        settings["spark.jars"] = ",".join(map(str, jars))
    else:
        settings["spark.jars.ivy"] = str(ivy_dir())
    return settings


def delta_jars() -> tuple[str, str]:
    """How Ivy names the files of ``delta_package``."""
    group, artifact, version = delta_package().split(":")
    return f"{group}_{artifact}-{version}.jar", f"{group}_delta-storage-{version}.jar"


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


def require_pyspark() -> None:
    """``ConfigError`` unless there is a PySpark that the data source works with."""
    version = spark_version()
    if version is None:
        raise ConfigError("PySpark is missing: pip install 'pulsark[spark]'")
    if version not in SPARK_VERSIONS:
        known = " and ".join(SPARK_VERSIONS)
        raise ConfigError(
            f"PySpark {version} is installed, and Pulsark works with {known}: "
            "pip install 'pulsark[spark]'"
        )


def require_connect() -> None:
    """``ConfigError`` unless the client of Spark Connect has what it imports."""
    missing = missing_for_connect()
    if missing is not None:
        raise ConfigError(
            f"Spark Connect needs the module {missing}: pip install 'pulsark[connect]'"
        )


def missing_for_connect() -> str | None:
    """A module that the client of Spark Connect imports and that is not there."""
    return next((name for name in CONNECT_MODULES if find_spec(name) is None), None)
