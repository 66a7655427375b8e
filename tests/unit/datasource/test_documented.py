"""docs/spark.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsark.datasource.columns import COLUMNS, Column
from pulsark.datasource.options import OPTIONS, OptionDoc

TEXT = (Path(__file__).parents[3] / "docs/spark.md").read_text()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_in_the_table(option: OptionDoc) -> None:
    names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
    assert f"| {names} | {option.default or '-'} | {option.meaning} |" in TEXT


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_every_column_is_in_the_table(column: Column) -> None:
    assert f"| `{column.name}` | {column.type} | {column.meaning} |" in TEXT
