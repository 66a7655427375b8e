"""docs/spark.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsark.datasource.options.columns import COLUMNS, Column
from pulsark.datasource.options.option_docs import OPTIONS, OptionDoc
from pulsark.datasource.options.options import VIEWS as VIEW_NAMES
from pulsark.datasource.read.views import VIEWS
from pulsark.datasource.write.write_options import WRITE_OPTIONS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/spark.md").read_text()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_in_the_table(option: OptionDoc) -> None:
    names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
    assert f"| {names} | {option.default or '-'} | {option.meaning} |" in TEXT


@pytest.mark.parametrize("option", WRITE_OPTIONS, ids=lambda option: option.name)
def test_every_option_of_a_write_is_in_its_table(option: OptionDoc) -> None:
    _, _, rest = TEXT.partition("\n### Options of a write\n")
    names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
    assert f"| {names} | {option.default or '-'} | {option.meaning} |" in rest.split("\n#")[0]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_every_column_is_in_the_table(column: Column) -> None:
    assert f"| `{column.name}` | {column.type} | {column.meaning} |" in TEXT


@pytest.mark.parametrize("view", VIEW_NAMES)
def test_every_view_has_its_table(view: str) -> None:
    _, _, rest = TEXT.partition(f"\n### {view}\n")
    section = rest.split("\n#")[0]
    assert section.count("\n| `") == len(VIEWS[view])
    for column in VIEWS[view]:
        assert f"| `{column.name}` | {column.type} | {column.meaning} |" in section


def test_the_options_know_the_views() -> None:
    assert list(VIEW_NAMES) == list(VIEWS)


@pytest.mark.parametrize(("part", "count"), [("source", 20), ("sink", 15)])
def test_each_row_of_the_comparison_with_kafka_has_its_test(part: str, count: int) -> None:
    section = TEXT.split(f"## As with Spark's Kafka {part}")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > count
    for row in rows:
        found = re.search(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert found is not None, row
        assert f"def {found[2]}(" in (ROOT / found[1]).read_text(), row
