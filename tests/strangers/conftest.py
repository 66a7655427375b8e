"""What cases share: Spark sessions are expensive, so there is one."""

from __future__ import annotations

from tests.spark.conftest import spark as spark
