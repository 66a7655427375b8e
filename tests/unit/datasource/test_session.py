"""The session's settings, without starting a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pulsark
from pulsark.datasource.session import (
    delta_jars,
    ivy_dir,
    require_connect,
    require_java,
    session,
    session_settings,
)
from pulsark.datasource.spark_defaults import SETTINGS, delta_package, properties_file
from pulsark.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_spark_defaults_say_the_same() -> None:
    text = (ROOT / "conf/spark-defaults.conf").read_text()
    assert text == properties_file(), "pulsark config --spark > conf/spark-defaults.conf"
    lines = text.splitlines()
    written = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    assert written == dict(SETTINGS)


def test_jars_in_the_cache_need_no_resolver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSARK_IVY_DIR", str(tmp_path))
    assert session_settings()["spark.jars.ivy"] == str(tmp_path)
    (tmp_path / "jars").mkdir()
    for name in delta_jars():
        (tmp_path / "jars" / name).touch()
    settings = session_settings()
    assert "spark.jars.packages" not in settings
    assert settings["spark.jars"].split(",") == [str(tmp_path / "jars" / j) for j in delta_jars()]


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSARK_IVY_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert str(ivy_dir()) == "/c/pulsark/ivy"


def test_a_missing_java_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="JAVA_HOME: there is no bin/java"):
        require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Java is missing"):
        require_java()


def test_delta_is_that_of_the_spark_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert delta_package() == SETTINGS["spark.jars.packages"]
    monkeypatch.setattr("pulsark.datasource.spark_defaults.spark_version", lambda: "4.1")
    assert delta_package() == "io.delta:delta-spark_4.1_2.13:4.4.0"
    assert delta_jars()[0] == "io.delta_delta-spark_4.1_2.13-4.4.0.jar"


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "PySpark is missing: pip install"), ("3.5", "3.5 is installed, and .* 4.1 and 4.2")],
)
def test_a_pyspark_that_does_not_do_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, version: str | None, message: str
) -> None:
    monkeypatch.setattr("pulsark.datasource.session.spark_version", lambda: version)
    with pytest.raises(ConfigError, match=message):
        session()


def test_connect_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    require_connect()
    monkeypatch.setattr("pulsark.datasource.session.CONNECT_MODULES", ("grpc", "no_such_module"))
    with pytest.raises(ConfigError, match=r"no_such_module: pip install 'pulsark\[connect\]'"):
        session(remote="local[2]")


def test_the_package_offers_the_session_without_importing_spark() -> None:
    assert pulsark.session is session
    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        pulsark.sesion  # noqa: B018
    code = "import pulsark, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_spark_finds_the_source_by_the_packages_name() -> None:
    import pyspark_pulsark

    assert pyspark_pulsark.DefaultSource.name() == "pulsark"
    code = (
        "import sys; sys.modules['pulsark.datasource.source'] = None; import pyspark_pulsark; "
        "sys.exit(hasattr(pyspark_pulsark, 'DefaultSource'))"
    )
    broken = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert broken.returncode == 0
    assert "'pulsark' is not available" in broken.stderr


def test_a_spark_before_4_1_does_not_know_the_format() -> None:
    code = "import pyspark.sql.datasource as d; del d.Filter; import pyspark_pulsark"
    old = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert old.returncode == 0
    assert "'pulsark' is not available: it needs Spark 4.1 or later" in old.stderr


def test_planning_does_not_import_pyarrow() -> None:
    code = (
        "import sys; import pyspark_pulsark; from pulsark.datasource.read import stream_reader; "
        "sys.exit(any(m in sys.modules for m in ('pyarrow', 'numpy', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
