"""``pulsark doctor spark``: what Spark needs to read topics from here, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding, print_findings

IMPORT_SECONDS = 60.0
CONNECT_SECONDS = 3.0
JAVA_VERSIONS = (17, 21)
PYARROW_MAJOR_MIN = 18
PANDAS_MAJOR_BELOW = 3
UNIX_PATH_BYTES_MAX = 107


def run_doctor(admin_url: str, service_url: str, *, as_json: bool) -> bool:
    """Print all findings; whether Spark can read topics."""
    conclusion = ("Spark can read topics from here.", "Spark cannot read topics from here yet")
    return print_findings(examine(admin_url, service_url), conclusion, as_json)


def examine(admin_url: str, service_url: str) -> Iterator[Finding]:
    """All checks, one after the other; none of them raises."""
    yield python()
    yield pyspark()
    yield libraries()
    yield connect()
    yield settings()
    yield java()
    yield discovery()
    yield jars()
    yield sockets()
    yield broker(admin_url, service_url)
    yield writes()


def writes() -> Finding:
    """What nothing but a hint can help with: Spark decides it before it asks the format."""
    return Finding(
        "writes",
        OK,
        'df.write needs .mode("append"): Spark refuses others (UNSUPPORTED_DATA_SOURCE_SAVE_MODE) '
        "before it asks the format",
    )


def python() -> Finding:
    """Whether the JVM will use this Python."""
    here = f"{sys.version.split()[0]}, {sys.executable}"
    given = os.environ.get("PYSPARK_PYTHON")
    if not given:
        return Finding(
            "python",
            WARNING,
            f"{here}; PYSPARK_PYTHON is not set",
            f"pulsark.session() sets it; for spark-submit: export PYSPARK_PYTHON={sys.executable}",
        )
    found = shutil.which(given)
    if found is None or _directory(found) != _directory(sys.executable):
        return Finding(
            "python",
            FAILURE,
            f"{here}, but PYSPARK_PYTHON is {given}" + ("" if found else ", which is not there"),
            f"export PYSPARK_PYTHON={sys.executable}: Spark looks for the format with that Python",
        )
    return Finding("python", OK, f"{here}, as PYSPARK_PYTHON")


def _directory(program: str) -> Path:
    """The directory of an environment, whose programs may all link to one interpreter."""
    return Path(program).absolute().parent.resolve()


def version_of(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pyspark() -> Finding:
    """Whether PySpark is one that this release works with."""
    from pulsark.datasource.spark_defaults import SPARK_VERSION, SPARK_VERSIONS

    found = version_of("pyspark") or version_of("pyspark-client")
    if found is None:
        return Finding("pyspark", FAILURE, "it is not installed", "pip install 'pulsark[spark]'")
    line = ".".join(found.split(".")[:2])
    if line not in SPARK_VERSIONS:
        return Finding(
            "pyspark",
            FAILURE,
            f"{found}; Pulsark works with {' and '.join(SPARK_VERSIONS)}",
            "pip install 'pulsark[spark]'",
        )
    return _spark_home(found) or Finding(
        "pyspark",
        OK,
        found if line == SPARK_VERSION else f"{found}; streams have no limits before 4.2",
    )


def _spark_home(version: str) -> Finding | None:
    """What is wrong if a variable left behind sends PySpark to the jars of another Spark."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return None
    cores = sorted(path.name for path in Path(home, "jars").glob("spark-core_*.jar"))
    if any(name.endswith(f"-{version}.jar") for name in cores):
        return None
    there = f"has {cores[0]}" if cores else "has no jars of Spark"
    return Finding(
        "pyspark",
        FAILURE,
        f"{version}, but SPARK_HOME is {home}, which {there}",
        f"unset SPARK_HOME, or pip install the pyspark of {home}",
    )


def libraries() -> Finding:
    """Whether what PySpark and Delta need beside them fits."""
    from pulsark.datasource.spark_defaults import DELTA_VERSION

    arrow, pandas, delta = map(version_of, ("pyarrow", "pandas", "delta-spark"))
    shown_versions = ", ".join(
        f"{name} {version or 'none'}"
        for name, version in (("pyarrow", arrow), ("pandas", pandas), ("delta-spark", delta))
    )
    if arrow is None or _major(arrow) < PYARROW_MAJOR_MIN:
        return Finding(
            "libraries", FAILURE, shown_versions, f"pip install 'pyarrow>={PYARROW_MAJOR_MIN}'"
        )
    if pandas is not None and _major(pandas) >= PANDAS_MAJOR_BELOW:
        return Finding(
            "libraries",
            WARNING,
            shown_versions,
            f"pip install 'pandas<{PANDAS_MAJOR_BELOW}': PySpark does not know newer ones",
        )
    if delta is not None and delta != DELTA_VERSION:
        return Finding(
            "libraries",
            WARNING,
            shown_versions,
            f"pip install delta-spark=={DELTA_VERSION}: it is the version of Delta's jars",
        )
    return Finding("libraries", OK, shown_versions)


def connect() -> Finding:
    """Whether a session of Spark Connect is possible; it is optional."""
    from pulsark.datasource.session import missing_for_connect

    missing = missing_for_connect()
    if missing is None:
        return Finding("connect", OK, "Spark Connect can be used")
    return Finding(
        "connect", OK, f"no module {missing}: Spark Connect needs pip install 'pulsark[connect]'"
    )


def settings() -> Finding:
    """What spark-submit reads from a file that happens to be there."""
    from pulsark.datasource.spark_defaults import delta_package

    path = _defaults_file()
    if path is None:
        return Finding(
            "settings", OK, "no spark-defaults.conf; `pulsark config --spark` prints one"
        )
    text = path.read_text(errors="replace")
    written = dict(re.findall(r"^\s*(spark\.[\w.]+)[ \t=:]+(.*\S)", text, re.M))
    packages = written.get("spark.jars.packages", "").split(",")
    other = [name for name in packages if "io.delta:delta-" in name and name != delta_package()]
    if other:
        return Finding(
            "settings",
            FAILURE,
            f"{path}: spark.jars.packages has {other[0]}",
            f"write {delta_package()} there: Delta has a jar for each version of Spark",
        )
    if written.get("spark.python.unix.domain.socket.enabled", "").lower() != "true":
        return Finding(
            "settings",
            WARNING,
            f"{path}: Python workers lose about 40 ms a task over TCP",
            "set spark.python.unix.domain.socket.enabled to true there",
        )
    return Finding("settings", OK, str(path))


def _defaults_file() -> Path | None:
    home = os.environ.get("SPARK_HOME")
    directory = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    path = Path(directory, "spark-defaults.conf") if directory else None
    return path if path is not None and path.is_file() else None


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def java() -> Finding:
    """Whether a JVM can be started."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    todo = "install Java 17 or 21, on the PATH or in JAVA_HOME"
    if program is None:
        return Finding("java", FAILURE, "there is none on the PATH", todo)
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=IMPORT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", FAILURE, f"{program}: {error}", todo)
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) not in JAVA_VERSIONS:
        return Finding("java", WARNING, f"{program}: {version[1] if version else 'unknown'}", todo)
    return Finding("java", OK, f"{version[1]}, {program}")


def discovery() -> Finding:
    """Whether Spark finds the format: one broken ``pyspark_*`` package hides all of them."""
    names = sorted(
        module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")
    )
    for name in names:
        problem = import_problem(name)
        if problem is not None:
            return Finding(
                "discovery",
                FAILURE,
                f"importing {name} fails: {problem}",
                f"repair or uninstall {name}; pulsark.session() works without the search",
            )
    if "pyspark_pulsark" not in names:
        return Finding(
            "discovery", FAILURE, "pyspark_pulsark is missing", "install the wheel of pulsark again"
        )
    problem = import_problem("pyspark_pulsark", "DefaultSource")
    if problem is not None:
        return Finding("discovery", FAILURE, problem, "pip install 'pulsark[spark]'")
    return Finding("discovery", OK, f"format pulsark; imported {', '.join(names)}")


def import_problem(module: str, attribute: str = "") -> str | None:
    """The last line of what goes wrong, in a process of its own."""
    code = f"import {module}" if not attribute else f"from {module} import {attribute}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"not done within {IMPORT_SECONDS:g} s"
    if done.returncode == 0:
        return None
    reason = re.search(r"format 'pulsark' is not available: (.+)", done.stderr)
    if reason is not None:  # what our own package caught
        return reason[1]
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def jars() -> Finding:
    """Whether Delta's jars are here, or will have to be downloaded."""
    from pulsark.datasource.session import delta_jars, ivy_dir
    from pulsark.datasource.spark_defaults import delta_package

    directory = ivy_dir() / "jars"
    missing = [name for name in delta_jars() if not (directory / name).is_file()]
    if missing:
        return Finding(
            "jars",
            WARNING,
            f"Delta's jars are not in {directory}; the first session downloads {delta_package()}",
            "python -m pulsark.datasource.jars, where there is a network",
        )
    return Finding("jars", OK, f"{delta_package()} in {directory}")


def sockets() -> Finding:
    """Whether Python workers can use Unix sockets, which save about 40 ms a task."""
    if not hasattr(socket, "AF_UNIX"):
        return Finding("sockets", WARNING, "no Unix sockets on this system; TCP is slower")
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/.{'0' * 36}.sock"  # about what Spark appends
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
        except OSError as error:
            return Finding(
                "sockets",
                FAILURE,
                f"{path}: {error}",
                f"set TMPDIR to a short path: a socket's has at most {UNIX_PATH_BYTES_MAX} bytes",
            )
    return Finding("sockets", OK, f"Unix sockets in {tempfile.gettempdir()}")


def broker(admin_url: str, service_url: str) -> Finding:
    """Whether a broker answers on the ports that a read needs."""
    from pulsark.admin_client.client import AdminError
    from pulsark.cli.admin.access import admin_client

    todo = "start one with `pulsark standalone`, or give --admin-url and --service-url"
    address = urlsplit(service_url)
    if not reachable(address.hostname or "", address.port or 6650):
        return Finding("broker", WARNING, f"nothing listens at {service_url}", todo)
    try:
        answer = admin_client(admin_url).get("/clusters")
    except AdminError as error:
        return Finding("broker", WARNING, f"{admin_url}: {error}", todo)
    return Finding("broker", OK, f"cluster {', '.join(answer)} at {service_url} and {admin_url}")


def reachable(host: str, port: int) -> bool:
    """Whether something accepts connections."""
    with suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
        return True
    return False
