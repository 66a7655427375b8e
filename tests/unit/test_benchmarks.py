"""What the command lines of benchmarks share."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.goals import add_check, add_scenarios


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_scenarios(parser, {"fast": 1, "slow": 2})
    add_check(parser)
    return parser.parse_args(arguments)


def test_without_names_all_scenarios_run() -> None:
    assert parsed("--check").scenarios == ["fast", "slow"]
    assert parsed("slow").scenarios == ["slow"]


def test_an_unknown_scenario_is_named_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parsed("fats")
    assert "'fats' is none of fast, slow" in capsys.readouterr().err
