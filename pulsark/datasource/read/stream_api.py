"""What Spark 4.2 has for streams and Spark 4.1 lacks, which reads everything in each batch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

ADMISSION_CONTROL = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark tells a source where a batch begins, and how much it may have."""

if TYPE_CHECKING or ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Without it such a query is one batch."""

    class ReadLimit:
        """How much a batch may have."""

    class ReadAllAvailable(ReadLimit):
        """The only limit there is."""

    class ReadMaxBytes(ReadLimit):
        """Never used."""

    class ReadMaxRows(ReadLimit):
        """Never used."""

    class ReadMinRows(ReadLimit):
        """Never used."""


__all__ = [
    "ADMISSION_CONTROL",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]
