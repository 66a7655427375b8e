"""What ``pulsark.session()`` sets and ``conf/spark-defaults.conf`` gives to ``spark-submit``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SPARK_VERSION = "4.2"
"""What this release is made for."""

SPARK_VERSIONS = ("4.1", SPARK_VERSION)
"""What it works with. Delta has jars of its own for each."""

DELTA_VERSION = "4.4.0"
DELTA_PACKAGE = f"io.delta:delta-spark_{SPARK_VERSION}_2.13:{DELTA_VERSION}"

_GROUPS: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        "Python workers lose about 40 ms a task over loopback TCP.",
        {
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
        },
    ),
    (
        "What a query wants of ids, keys and times is looked for, in place of reading everything.",
        {"spark.sql.python.filterPushdown.enabled": "true"},
    ),
    (
        "Delta. Two jars do; the others that it names are for Kafka, Hadoop and Unity Catalog.",
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.jars.packages": DELTA_PACKAGE,
            "spark.jars.excludes": "org.apache.hadoop:*,io.delta:delta-kernel-*,io.unitycatalog:*",
        },
    ),
    (
        "The defaults are for a cluster; on one machine they make small queries take seconds.\n"
        "On a cluster remove these two.",
        {"spark.sql.shuffle.partitions": "4", "spark.databricks.delta.snapshotPartitions": "2"},
    ),
    ("No bars of progress among a query's output.", {"spark.ui.showConsoleProgress": "false"}),
)

SETTINGS: Mapping[str, str] = {key: value for _, group in _GROUPS for key, value in group.items()}

_HEAD = """\
# What pulsark.session() sets, for spark-submit; `pulsark config --spark` prints this file.
#   spark-submit --properties-file spark-defaults.conf job.py
# Spark looks for the format with the Python in $PYSPARK_PYTHON: export one that has pulsark."""


def properties_file() -> str:
    """``conf/spark-defaults.conf``, with Delta for the Spark that is installed."""
    blocks = [_HEAD]
    for reason, group in _GROUPS:
        lines = [f"# {line}" for line in reason.splitlines()]
        for key, value in group.items():
            lines.append(f"{key:<42} {delta_package() if value == DELTA_PACKAGE else value}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def spark_version() -> str | None:
    """The first two numbers of the PySpark that is installed."""
    with suppress(ImportError):
        # A Spark that was unpacked and not installed has no metadata to ask.
        from pyspark.version import __version__

        return ".".join(__version__.split(".")[:2])
    return None


def delta_package() -> str:
    """Delta's coordinates for the Spark that is installed."""
    version = spark_version()
    if version not in SPARK_VERSIONS:
        return DELTA_PACKAGE
    return DELTA_PACKAGE.replace(f"_{SPARK_VERSION}_", f"_{version}_")
