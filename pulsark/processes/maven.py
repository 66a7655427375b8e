"""Jars from Maven Central, pinned by a lock file and fetched by the Ivy that PySpark ships.

A lock file has one ``group:artifact:version[:classifier]`` a line and is the *whole* list, as
Maven resolves it: no POM is read here, so a machine needs nothing but Java, and gets the same
class path everywhere. Ivy checks each jar against the repository's SHA-1. To make a lock anew,
next to a POM with the one dependency::

    mvn dependency:list -DincludeScope=runtime -Dsort=true -DoutputFile=list.txt
    python -m pulsark.processes.maven list.txt > some.lock
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pulsark.errors import ConfigError
from pulsark.file_locks import holding
from pulsark.processes.java_process import JavaProcess, java

REPOSITORY = "https://repo1.maven.org/maven2/"

_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}" useOrigin="false"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" root="{repository}"
             useMavenMetadata="false" checksums="sha1"/>
  </resolvers>
</ivysettings>
"""

_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="pulsark" module="{name}"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""

_DEPENDENCY = """    <dependency org="{0.group}" name="{0.artifact}" rev="{0.version}"
                transitive="false">
{artifacts}
    </dependency>"""

_ARTIFACT = """      <artifact name="{0.artifact}" type="jar" ext="jar"{classifier}/>"""


class Coordinate(NamedTuple):
    """One jar in a Maven repository."""

    group: str
    artifact: str
    version: str
    classifier: str = ""

    @classmethod
    def parse(cls, line: str) -> Coordinate:
        """Read ``group:artifact:version[:classifier]``."""
        parts = line.strip().split(":")
        if len(parts) not in (3, 4) or not all(parts):
            raise ValueError(f"not group:artifact:version[:classifier]: {line!r}")
        return cls(*parts)

    @property
    def file_name(self) -> str:
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{suffix}.jar"


def read_lock(lock: Path) -> list[Coordinate]:
    """The coordinates of a lock file, in its order."""
    lines = (line.strip() for line in lock.read_text().splitlines())
    return [Coordinate.parse(line) for line in lines if line and not line.startswith("#")]


def class_path(lock: Path, cache: Path) -> str:
    """A class path of the lock's jars, fetched if any is missing. Raises ``ConfigError``."""
    coordinates = read_lock(lock)
    directory = cache / lock.stem
    paths = [directory / coordinate.file_name for coordinate in coordinates]
    if not all(path.exists() for path in paths):
        work = cache / "ivy"
        work.mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("w") as file, holding(file.fileno()):  # Ivy's cache has none
            if not all(path.exists() for path in paths):
                _fetch(lock.stem, coordinates, directory, work)
    return os.pathsep.join(map(str, paths))


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("the jars are fetched by PySpark's Ivy: pip install 'pulsark[spark]'")
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))


def _fetch(name: str, coordinates: list[Coordinate], directory: Path, work: Path) -> None:
    settings, module = work / f"{name}-settings.xml", work / f"{name}.xml"
    settings.write_text(_SETTINGS.format(cache=work / "cache", repository=REPOSITORY))
    module.write_text(_MODULE.format(name=name, dependencies=_dependencies(coordinates)))
    pattern = f"{directory}/[artifact]-[revision](-[classifier]).[ext]"
    command = [java(), "-jar", str(_ivy_jar()), "-settings", str(settings), "-ivy", str(module)]
    print(f"fetching {len(coordinates)} jars of {name} from {REPOSITORY}", file=sys.stderr)
    said = work / f"{name}.log"
    said.unlink(missing_ok=True)
    ivy = JavaProcess()
    ivy.dies_with_us = True
    ivy.start([*command, "-retrieve", pattern], said)
    code = ivy.wait()
    missing = [c.file_name for c in coordinates if not (directory / c.file_name).exists()]
    if code or missing:
        raise ConfigError(
            f"could not fetch {len(missing)} of the {len(coordinates)} jars of {name}\n"
            f"  from {REPOSITORY}. They are needed once: is there a network, and does\n"
            f"  it allow that address? Or copy them to {directory}\n"
            f"  What Ivy said: {said}"
        )


def _dependencies(coordinates: list[Coordinate]) -> str:
    """Ivy's XML: one dependency a module, with all its classifiers."""
    modules: dict[Coordinate, list[str]] = {}
    for coordinate in coordinates:
        classifier = f' m:classifier="{coordinate.classifier}"' if coordinate.classifier else ""
        artifact = _ARTIFACT.format(coordinate, classifier=classifier)
        modules.setdefault(coordinate._replace(classifier=""), []).append(artifact)
    return "\n".join(
        _DEPENDENCY.format(module, artifacts="\n".join(artifacts))
        for module, artifacts in modules.items()
    )


def _lock_lines(listing: str) -> list[str]:
    """Lock lines from the output of ``mvn dependency:list``."""
    pattern = r"^\s+([\w.-]+):([\w.-]+):jar:(?:([\w.-]+):)?([\w.-]+):(?:compile|runtime)\b"
    return sorted(
        ":".join(filter(None, (group, artifact, version, classifier)))
        for group, artifact, classifier, version in re.findall(pattern, listing, re.MULTILINE)
    )


if __name__ == "__main__":
    print("\n".join(_lock_lines(Path(sys.argv[1]).read_text())))
