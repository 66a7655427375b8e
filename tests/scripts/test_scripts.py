"""Every script of this folder has the output that is written in it."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.scripts.play import play
from tests.scripts.script import Script, ScriptError
from tests.sim.simulation import Simulation

FOLDER = Path(__file__).parent
SCRIPTS = sorted(FOLDER.glob("*.txt"))


every_script = pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])


@every_script
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    """With ``--rewrite`` the file gets the output: look at the difference."""
    script = Script.parse(path.read_text())
    outputs = play(script)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(script.with_outputs(outputs).render())
    else:
        compare(path.read_text(), script, outputs)


@every_script
@pytest.mark.parametrize("prompt", [0.0, 1.0], ids=["slow disk", "quick disk"])
def test_no_output_depends_on_how_quick_a_disk_is(path: Path, prompt: float) -> None:
    script = Script.parse(path.read_text())
    compare(path.read_text(), script, play(script, lambda: Simulation(1, prompt)))


def compare(text: str, script: Script, outputs: list[list[str]]) -> None:
    """Fail with the difference."""
    played = script.with_outputs(outputs).render()
    if played != text:
        difference = unified_diff(text.splitlines(), played.splitlines(), "written", "heard", n=5)
        pytest.fail("\n".join(difference), pytrace=False)


STORY = Script.parse("# A story.\n\nproducer p\npublish p m1\nsubscribe a s\n----\nnothing\n")


def test_an_output_that_is_not_so_is_noticed() -> None:
    assert play(STORY) == [["p: ready", "p -> m1 (0:0)", "a: ok", "a <- m1 (0:0)"]]


@pytest.mark.parametrize(
    "wrong",
    [
        "producer p\n",
        "# No full stop\n\nproducer p\n",
        "# No command.\n\n----\nnothing\n",
        "# No such command.\n\nfly a\n",
        "# No such option.\n\nproducer p speed=3\n",
        "# No such producer.\n\npublish p m1\n",
        "# No such message.\n\nsubscribe a s\nack a m1\n",
        "# No such setting.\n\nbroker speed=3\n",
    ],
)
def test_what_is_not_in_the_language_is_refused(wrong: str) -> None:
    with pytest.raises(ScriptError):
        play(Script.parse(wrong))
