"""The command line without a broker: options, output, and how failures end."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from pulsark import __version__
from pulsark.admin_client.client import AdminClient, AdminError
from pulsark.cli import main
from pulsark.cli.admin.messages import MessageOutput, run_produce
from pulsark.cli.app import app
from pulsark.cli.settings import markdown_page, properties_file
from pulsark.cli.standalone import OPTIONS
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import human_rate, human_size, print_table
from pulsark.config.keys import keys
from pulsark.config.sources import load_settings, parse_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


class Ended(Exception):
    def __init__(self, code: int, out: str, err: str) -> None:
        super().__init__(code, out, err)
        self.code, self.out, self.err = code, out, err


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> Ended:
    """Run the command line in this process."""
    monkeypatch.setattr(sys, "argv", ["pulsark", *arguments])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    text = capsys.readouterr()
    return Ended(code, text.out, text.err)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in list(os.environ):
        if name.startswith("PULSARK_"):
            monkeypatch.delenv(name)


# -- standalone's options ------------------------------------------------------------------------


@pytest.mark.feature("F90")
def test_the_options_of_standalone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "pulsark.cli.standalone.run_standalone",
        lambda conf, flags, *, as_json, adopt: seen.append((conf, flags, as_json, adopt)),
    )
    run(monkeypatch, capsys, "standalone")
    words = "--data-dir d --conf=f --bookies 3 --broker-port 0 --set a=b=c --set d= --json --adopt"
    run(monkeypatch, capsys, "standalone", *words.split())
    given = {"dataDir": "d", "bookies": "3", "brokerServicePort": "0", "a": "b=c", "d": ""}
    assert seen == [(None, {}, False, False), ("f", given, True, True)]


def test_the_settings_that_are_options_of_standalone_exist() -> None:
    assert {key for _, key, *_ in OPTIONS} <= {key.name for key in keys()}


def commands(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """The words of a command, and of all below it."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *words, name)


def test_help_has_whole_names_in_a_terminal_of_80_columns() -> None:
    for words in commands(typer.main.get_command(app)):
        text = CliRunner().invoke(app, [*words, "--help"], env={"TERMINAL_WIDTH": "80"}).output
        assert "…" not in text, (words, text)
        assert max(map(len, text.splitlines())) <= 80, (words, text)


@pytest.mark.parametrize("words", ["standalone --help", "standalone -h", "--help"])
def test_help_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    ended = run(monkeypatch, capsys, *words.split())
    assert ended.code == 0
    words_of_it = " ".join(ended.out.replace("\u2502", " ").split())
    assert "Run a broker with its storage in one process, until Ctrl-C." in words_of_it


# -- commands ------------------------------------------------------------------------------------


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, capsys, "version").out == f"pulsark {__version__}\n"
    found = json.loads(run(monkeypatch, capsys, "version", "--json").out)
    assert found["version"] == __version__


def test_config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PULSARK_brokerServicePort", "7777")
    ended = run(monkeypatch, capsys, "config")
    assert ended.code == 0
    assert "brokerServicePort=7777\n" in ended.out
    assert "Default: 6650; set by environment." in " ".join(ended.out.split())
    for key in keys():
        assert f"{key.name}=" in ended.out
    assert max(len(line) for line in ended.out.splitlines() if line.startswith(" ")) <= 80
    found = json.loads(run(monkeypatch, capsys, "config", "--json").out)
    by_name = {item["key"]: item for item in found}
    assert by_name["brokerServicePort"]["value"] == 7777
    assert by_name["brokerServicePort"]["default"] == 6650
    assert by_name["keepAliveIntervalSeconds"]["unit"] == "s"
    assert by_name["dataDir"]["pulsark"] is True


def test_config_warns_of_unknown_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerServicPort=1\n")
    ended = run(monkeypatch, capsys, "config", "--conf", str(file))
    assert ended.code == 0
    assert "warning: brokerServicPort: unknown key, did you mean brokerServicePort?" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", 2, "Usage"),
        ("wibble", 2, "No such command"),
        ("standalone --wibble", 2, "unrecognized arguments: --wibble"),
        ("standalone extra", 2, "unrecognized arguments: extra"),
        ("standalone --broker-port", 2, "--broker-port: expected one argument"),
        ("standalone --bookies x", 1, "pulsark: bookies=x: a whole number"),
        ("standalone --set x", 2, "KEY=VALUE"),
        ("produce", 2, "Missing argument"),
        ("produce t -m x -p novalue", 2, "NAME=VALUE"),
        ("consume t --type odd", 2, "key_shared"),
        ("consume t --position middle", 2, "earliest"),
        ("topics create t -p -1", 2, "--partitions"),
        ("policies get persistent://public/default/t", 1, "which policy"),
        ("policies get public --admin-url http://127.0.0.1:1", 1, "tenant/namespace"),
        ("policies set public/default retention", 2, "VALUE"),
        ("schemas upload t /nowhere/f", 1, "pulsark: /nowhere/f: "),
        ("schemas upload t - -p novalue", 2, "NAME=VALUE"),
        ("schemas get t -v -1", 2, "--version"),
        ("schemas get a/b --admin-url http://127.0.0.1:1", 1, "pulsark: Invalid name"),
        ("standalone --broker-port 70000", 1, "pulsark: brokerServicePort=70000: a whole number"),
        ("standalone --set brokerServicePort=x", 1, "pulsark: brokerServicePort=x"),
        ("standalone --conf /nowhere/f", 1, "pulsark: --conf /nowhere/f: No such file"),
        ("topics list --admin-url http://127.0.0.1:1", 1, "is the broker running?"),
        ("topics list --admin-url ftp://x", 1, "write http://HOST:PORT"),
        ("produce t -m x --service-url pulsar://127.0.0.1:1", 1, "is it running?"),
        ("consume t --service-url pulsar://127.0.0.1:x", 1, "is it running?"),
        ("consume t --service-url kafka://x", 1, "write pulsar://HOST:PORT"),
        ("topics stats a/b --admin-url http://127.0.0.1:1", 1, "pulsark: Invalid name"),
        ("topics list ../x --admin-url http://127.0.0.1:1", 1, "pulsark: Invalid tenant"),
    ],
)
def test_how_mistakes_end(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    code: int,
    message: str,
) -> None:
    ended = run(monkeypatch, capsys, *arguments.split())
    assert ended.code == code
    text = re.sub(r"\s+", " ", re.sub("[│╭╮╰╯─]", " ", ended.out + ended.err))
    assert message in text
    assert "Traceback" not in text
    if code == 1:
        assert ended.err.count("\n") == 1


def test_without_the_client_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pulsar", None)
    for command in (["produce", "t", "-m", "x"], ["consume", "t"]):
        ended = run(monkeypatch, capsys, *command)
        assert ended.code == 1
        assert ended.err.count("\n") == 1
        assert "pip install pulsar-client" in ended.err


def test_a_reader_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        f"{sys.executable} -m pulsark config | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("clusterName=")


# -- output --------------------------------------------------------------------------------------


def test_tables_fit_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_table([("NAME", False), ("N", True)], [("x" * 200, 5), ("[bold]y", 12_345)])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "[bold]y" in out
    assert out.count("x") == 200


def test_numbers_for_people() -> None:
    assert human_size(0) == "0 B"
    assert human_size(999) == "999 B"
    assert human_size(1536) == "1.5 KiB"
    assert human_size(5 * 2**40) == "5.0 TiB"
    assert human_rate(12.34) == "12.3"
    assert human_rate(123456.7) == "123,457"


def message(data: bytes, **changed: Any) -> SimpleNamespace:
    numbers = {"ledger_id": 1, "entry_id": 2, "partition": -1, "batch_index": 0}
    facts = {
        "data": data,
        "partition_key": "k",
        "topic_name": "persistent://public/default/t",
        "properties": {"a": "b"},
        "publish_timestamp": 5,
        "event_timestamp": 0,
        **changed,
    }
    message_id = SimpleNamespace(**{name: lambda n=n: n for name, n in numbers.items()})
    return SimpleNamespace(
        message_id=lambda: message_id, **{name: lambda f=f: f for name, f in facts.items()}
    )


def test_messages_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    MessageOutput(False).received(message(b"hello"))
    MessageOutput(False).received(message(b"", partition_key=""))
    assert capsys.readouterr().out == "k\thello\n\n"
    MessageOutput(True).received(message("grüße".encode()))
    assert json.loads(capsys.readouterr().out) == {
        "messageId": "1:2:-1:0",
        "topic": "persistent://public/default/t",
        "key": "k",
        "properties": {"a": "b"},
        "publishTime": 5,
        "eventTime": None,
        "payload": "grüße",
    }
    MessageOutput(True).received(message(b"\xff\x00"))
    assert json.loads(capsys.readouterr().out)["payloadBase64"] == "/wA="


class FakeProducer:
    def __init__(self, failing: set[bytes]) -> None:
        self.sent: list[bytes] = []
        self.failing = failing
        self.closed = False

    def send_async(self, data: bytes, done: Any, **options: Any) -> None:
        self.sent.append(data)
        ok = data not in self.failing
        done("Ok" if ok else "Result.Timeout", message(data).message_id() if ok else None)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def test_produce_says_what_was_not_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = FakeProducer({b"two"})
    client = SimpleNamespace(create_producer=lambda *_, **__: producer, close=lambda: None)
    fake = SimpleNamespace(
        Client=lambda *_, **__: client,
        FileLogger=lambda level, path: None,
        LoggerLevel=SimpleNamespace(Error=3),
        Result=SimpleNamespace(Ok="Ok"),
        PulsarException=RuntimeError,
    )
    monkeypatch.setitem(sys.modules, "pulsar", fake)
    monkeypatch.setattr("pulsark.cli.admin.messages._check_reachable", lambda url: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\nthree\n"))
    with pytest.raises(CommandError, match="1 of 2 messages were not stored: Timeout"):
        run_produce("pulsar://x", "t", [], None, {}, 1, MessageOutput(False))
    assert producer.sent == [b"one", b"two"]
    assert producer.closed
    assert capsys.readouterr().out == "1:2:-1:0\n"


@pytest.mark.parametrize("url", ["http://", "https:///x", "file:///etc/passwd"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(AdminError, match="write http://HOST:PORT"):
        AdminClient(url)


# -- documents made from the code ------------------------------------------------------------------


def test_the_page_on_configuration_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == markdown_page()


def test_the_sample_file_is_up_to_date_and_changes_nothing() -> None:
    text = (ROOT / "conf/broker.conf").read_text()
    assert text == properties_file()
    assert set(parse_properties(text)) == {key.name for key in keys()}
    loaded = load_settings(file=str(ROOT / "conf/broker.conf"))
    assert loaded.settings == load_settings().settings
    assert loaded.warnings == ()


def test_small_commands_stay_quick_to_start() -> None:
    """Start-up time is imports: none of the heavy ones may creep in."""
    code = (
        "import sys; sys.argv = ['pulsark', 'version']\n"
        "from pulsark.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pulsar", "pyspark", "pyarrow", "fastapi", "google", "uvloop", "numpy", "rich"}
    assert not heavy & set(done.stdout.split())
