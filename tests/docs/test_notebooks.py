"""Notebooks with all their rows."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.notebooks import NOTEBOOKS, run_notebook


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_runs(name: str, spark: SparkSession) -> None:
    run_notebook(name)
