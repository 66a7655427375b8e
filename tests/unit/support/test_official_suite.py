"""The runner of the official suite: what fails, hangs or dies is told from what may fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.official_suite import Outcome, Suite, errors_in, exceptions, judge, report

SOURCE = """
import os, signal, unittest

class Alone(unittest.TestCase):
    def test_a_passes(self): pass
    def test_b_fails(self): self.assertEqual(1, 2)
    def test_c_dies(self): os._exit(3)
    def test_d_hangs(self): signal.pause()
    def test_e_is_skipped(self): self.skipTest("no")
    def test_f_has_parts(self):
        with self.subTest("part"): self.fail("in a part")
    def test_g_prints(self): print('{"end": "g", "outcome": "passed"}')

class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise ValueError("no broker")
    def test_h(self): pass

class Absent(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("no docker")
    def test_i(self): pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    (tmp_path / "some_test.py").write_text(SOURCE)
    (tmp_path / "other_test.py").write_text("import a_module_that_nobody_has")
    return Suite(tmp_path, tmp_path / "log", test_seconds=2.0)


def test_every_test_gets_a_result(suite: Suite) -> None:
    tests, error = suite.tests("some_test")
    assert error == ""
    assert len(tests) == 9
    found = {o.test.removeprefix("some_test."): (o.outcome, o.detail) for o in suite.run(tests)}
    assert {test: outcome for test, (outcome, _) in found.items()} == {
        "Alone.test_a_passes": "passed",
        "Alone.test_b_fails": "failed",
        "Alone.test_c_dies": "failed",
        "Alone.test_d_hangs": "failed",
        "Alone.test_e_is_skipped": "skipped",
        "Alone.test_f_has_parts": "failed",
        "Alone.test_g_prints": "passed",
        "Broken": "failed",
        "Absent": "skipped",
    }
    assert "no end" in found["Alone.test_c_dies"][1]
    assert "no end" in found["Alone.test_d_hangs"][1]
    assert "in a part" in found["Alone.test_f_has_parts"][1]
    assert "no broker" in found["Broken"][1]


def test_a_file_that_cannot_be_imported(suite: Suite) -> None:
    assert suite.modules() == ["other_test", "some_test"]
    tests, error = suite.tests("other_test")
    assert tests == []
    assert "a_module_that_nobody_has" in error


def outcome(test: str, what: str) -> Outcome:
    return Outcome(test, what, "", 0.0)


def test_what_may_fail_and_what_may_not(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [
        outcome("a_test.A.test_tls", "failed"),
        outcome("a_test.A.test_tls2", "failed"),
        outcome("b_test.B.test_one", "passed"),
        outcome("b_test.B.test_two", "skipped"),
    ]
    listed = {"a_test.A.test_tls": "no TLS", "b_test": "no containers", "c_test.C.gone": "?"}
    verdict = judge(outcomes, listed)
    assert verdict.unexpected == ("a_test.A.test_tls2",)
    assert verdict.expected == ("a_test.A.test_tls",)
    assert verdict.recovered == ("b_test.B.test_one",)
    assert verdict.unknown == ("c_test.C.gone",)
    assert report(outcomes, listed) == 1
    assert "b_test.B.test_one: is listed and passes" in capsys.readouterr().out
    assert report(outcomes, {**listed, "a_test": "no TLS"}) == 0


def test_an_error_in_the_log_of_the_broker_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "data.log"
    log.write_text("Pulsark is ready\n2026-11-21 12:42:11,856 WARNING pulsark: no ERROR\n")
    assert errors_in(log) == []
    assert report([], {}, errors_in(log)) == 0
    log.write_text("2026-11-21 12:42:11,856 ERROR   asyncio: Task exception\nTraceback\n")
    assert len(errors_in(log)) == 1
    assert report([], {}, errors_in(log)) == 1


def test_the_list_gives_a_reason_for_each() -> None:
    listed = exceptions()
    assert listed
    assert all(len(reason) > 10 for reason in listed.values())


def test_a_test_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    group = '[[exceptions]]\nreason = "no"\ntests = ["a"]\n'
    path.write_text(group * 2)
    with pytest.raises(ValueError, match="a is listed twice"):
        exceptions(path)
