"""``pulsark doctor spark``: what is missing, and what to do about it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from pulsark.cli.doctor import spark as doctor
from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding


@pytest.fixture(autouse=True)
def _own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def test_the_python_of_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.python().status == OK
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    found = doctor.python()
    assert found.status == FAILURE
    assert f"export PYSPARK_PYTHON={sys.executable}" in found.todo
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert doctor.python().status == WARNING


@pytest.mark.parametrize(
    ("version", "status"), [(None, FAILURE), ("4.2.0", OK), ("4.1.4", OK), ("3.5.1", FAILURE)]
)
def test_the_version_of_pyspark(
    monkeypatch: pytest.MonkeyPatch, version: str | None, status: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(doctor, "version_of", lambda package: version)
    assert doctor.pyspark().status == status


def test_a_spark_home_of_another_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: "4.2.0")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "has no jars of Spark" in doctor.pyspark().found
    (tmp_path / "jars").mkdir()
    core = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    core.touch()
    found = doctor.pyspark()
    assert (found.status, core.name in found.found) == (FAILURE, True)
    assert "unset SPARK_HOME" in found.todo
    core.rename(core.with_name("spark-core_2.13-4.2.0.jar"))
    assert doctor.pyspark().status == OK


def test_settings_that_spark_submit_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert doctor.settings().status == OK
    shipped = (Path(__file__).parents[3] / "conf/spark-defaults.conf").read_text()
    there = tmp_path / "spark-defaults.conf"
    there.write_text(shipped)
    assert doctor.settings().status == OK
    there.write_text(shipped.replace("delta-spark_4.2_2.13:4.4.0", "delta-spark_2.13:4.0.0"))
    found = doctor.settings()
    assert (found.status, "delta-spark_2.13:4.0.0" in found.found) == (FAILURE, True)
    assert "io.delta:delta-spark_4.2_2.13:4.4.0" in found.todo
    there.write_text("spark.ui.enabled=false\n")
    assert "unix.domain.socket" in doctor.settings().todo


def test_spark_connect_is_for_who_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.connect().found == "Spark Connect can be used"
    monkeypatch.setattr("pulsark.datasource.session.CONNECT_MODULES", ("no_such_module",))
    assert doctor.connect().status == OK
    assert "pip install 'pulsark[connect]'" in doctor.connect().found


def test_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[str, str | None] = {"pyarrow": "26.0.1", "pandas": None, "delta-spark": None}
    monkeypatch.setattr(doctor, "version_of", versions.get)
    assert doctor.libraries().status == OK
    versions["delta-spark"] = "4.0.0"
    assert "delta-spark==4.4.0" in doctor.libraries().todo
    versions["pandas"] = "3.1.1"
    assert "pandas<3" in doctor.libraries().todo
    versions["pyarrow"] = "9.0.0"
    assert doctor.libraries().status == FAILURE


def test_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor.java().status == FAILURE
    for version, status in (("17.0.1", OK), ("11.0.2", WARNING)):
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
        assert doctor.java().status == status


def test_one_broken_package_hides_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('I am broken')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}")
    found = doctor.discovery()
    assert found.status == FAILURE
    assert found.found == "importing pyspark_broken fails: RuntimeError: I am broken"
    assert "uninstall pyspark_broken" in found.todo


def test_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from pulsark.datasource.session import delta_jars

    monkeypatch.setenv("PULSARK_IVY_DIR", str(tmp_path))
    assert doctor.jars().status == WARNING
    (tmp_path / "jars").mkdir()
    for name in delta_jars():
        (tmp_path / "jars" / name).touch()
    assert doctor.jars().status == OK


def test_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    assert doctor.sockets().status == OK
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    found = doctor.sockets()
    assert found.status == FAILURE
    assert "TMPDIR" in found.todo


def test_the_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    found = doctor.broker("http://127.0.0.1:1", f"pulsar://127.0.0.1:{port}")
    assert found.status == WARNING
    assert "pulsark standalone" in found.todo


def test_the_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        Finding("one", OK, "fine"),
        Finding("two", FAILURE, "wrong " * 30, "do this and that, as often as it takes " * 3),
    ]
    monkeypatch.setattr(doctor, "examine", lambda *_: iter(findings))
    assert not doctor.run_doctor("http://h", "pulsar://h", as_json=False)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0] == "ok       one        fine"
    assert text.splitlines()[-1] == "Spark cannot read topics from here yet: two."
    assert not doctor.run_doctor("http://h", "pulsar://h", as_json=True)
    assert json.loads(capsys.readouterr().out)[0] == {
        "check": "one", "status": "ok", "found": "fine", "todo": "",
    }  # fmt: skip
