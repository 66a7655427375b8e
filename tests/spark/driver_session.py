"""The Spark session of applications that tests start as processes of their own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from pulsark.datasource.session import session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""They live for seconds: compiling well costs more than it gains."""


def driver_session(**config: str) -> SparkSession:
    """A session of two cores that starts fast; the format is found by the package's name alone."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").config("spark.ui.enabled", "false")
    for key, value in (session_settings() | config).items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.config("spark.driver.extraJavaOptions", QUICK_START).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
