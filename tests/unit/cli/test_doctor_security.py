"""``pulsark doctor security``: what is open, and how to close it."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest
import trustme

from pulsark.cli.doctor import security as doctor
from pulsark.cli.doctor.finding import FAILURE, OK, WARNING
from pulsark.config.settings import Settings
from tests.support.revocations import revocation_list

NOW = datetime.datetime.now(datetime.UTC)
LOGIN = {"authenticationEnabled": True, "authenticationProviders": ("token",)}
RIGHTS = {**LOGIN, "authorizationEnabled": True, "superUserRoles": ("admin",)}
OUTSIDE = {"bindAddress": "0.0.0.0"}


def tls(folder: Path, **issued: Any) -> dict[str, Any]:
    """Settings of ports over TLS alone."""
    made = trustme.CA().issue_cert("localhost", **issued)
    paths = folder / "broker.pem", folder / "broker.key"
    paths[0].write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    paths[1].write_bytes(made.private_key_pem.bytes())
    os.chmod(paths[1], 0o600)
    plain = dict.fromkeys(("brokerServicePort", "webServicePort", "flightServicePort"))
    over = {"brokerServicePortTls": 6651, "webServicePortTls": 8443, "flightServicePortTls": 8816}
    files = {"tlsCertificateFilePath": str(paths[0]), "tlsKeyFilePath": str(paths[1])}
    return {**plain, **over, **files}


@pytest.mark.parametrize(
    ("given", "status", "todo"),
    [
        ({}, WARNING, "authenticationEnabled=true"),
        (OUTSIDE, FAILURE, "bindAddress=localhost"),
        ({**OUTSIDE, **LOGIN}, OK, ""),
    ],
)
def test_who_comes_in(given: dict[str, Any], status: str, todo: str) -> None:
    found = doctor.access(Settings(**given))
    assert found.status == status
    assert todo in found.todo


@pytest.mark.parametrize(("given", "status"), [({}, OK), (LOGIN, FAILURE), (RIGHTS, OK)])
def test_what_those_may_do_who_come_in(given: dict[str, Any], status: str) -> None:
    assert doctor.authorization(Settings(**given)).status == status


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [
        (RIGHTS, OK, "1 may do everything"),
        ({**RIGHTS, "anonymousUserRole": "admin"}, FAILURE, "which may do everything"),
        ({**RIGHTS, "anonymousUserRole": "guest"}, WARNING, "guest"),
        ({**RIGHTS, "superUserRoles": ()}, WARNING, "no role may create tenants"),
        ({**RIGHTS, "superUserRoles": ("*",)}, WARNING, "no pattern"),
    ],
)
def test_roles(given: dict[str, Any], status: str, told: str) -> None:
    found = doctor.roles(Settings(**given))
    assert found.status == status
    assert told in found.found


def test_ports_in_the_clear(tmp_path: Path) -> None:
    assert doctor.encryption(Settings()).status == OK
    found = doctor.encryption(Settings(**OUTSIDE, webServicePort=None))
    assert found.status == WARNING
    assert "brokerServicePort, flightServicePort" in found.found
    assert "brokerServicePort= brokerServicePortTls=6651" in found.todo
    assert doctor.encryption(Settings(**OUTSIDE, **tls(tmp_path))).status == OK


def test_the_certificate(tmp_path: Path) -> None:
    assert doctor.certificate(Settings(), NOW).status == OK
    ends = NOW + datetime.timedelta(days=60)
    settings = Settings(**tls(tmp_path, not_after=ends))
    assert doctor.certificate(settings, NOW).status == OK
    soon = doctor.certificate(settings, ends - datetime.timedelta(days=20))
    assert (soon.status, "renew" in soon.todo) == (WARNING, True)
    late = doctor.certificate(settings, ends + datetime.timedelta(days=1))
    assert (late.status, "it is valid from" in late.found) == (FAILURE, True)
    elsewhere = Settings(**tls(tmp_path, not_after=ends), advertisedAddress="broker.example")
    other = doctor.certificate(elsewhere, NOW)
    assert (other.status, "is for localhost" in other.found) == (FAILURE, True)
    Path(settings.tlsKeyFilePath).write_text("none")
    assert doctor.certificate(settings, NOW).status == FAILURE


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("a.example", True),
        ("A.Example", True),
        ("b.cafe.example", True),
        ("c.b.cafe.example", False),
        ("cafe.example", False),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
    ],
)
def test_names_that_a_certificate_is_for(name: str, covered: bool) -> None:
    assert doctor.covers(["a.example", "*.cafe.example", "192.0.2.1"], name) == covered


def test_lists_of_revoked_certificates(tmp_path: Path) -> None:
    assert doctor.revoked(Settings(), NOW).status == OK
    file = tmp_path / "revoked.pem"
    settings = Settings(tlsCrlFilePath=str(file))
    assert doctor.revoked(settings, NOW).status == FAILURE
    authority = trustme.CA()
    long, short = (
        revocation_list(authority, authority.issue_cert("x@example.org"), days) for days in (40, 9)
    )
    file.write_bytes(long + short)
    found = doctor.revoked(settings, NOW)
    assert (found.status, found.found) == (OK, "the lists are valid for 9 more days")
    late = doctor.revoked(settings, NOW + datetime.timedelta(days=10))
    assert late.status == FAILURE
    assert "are refused" in late.found
    file.write_bytes(b"-----BEGIN X509 CRL-----junk")
    assert doctor.revoked(settings, NOW).status == FAILURE


def test_files_that_all_can_read(tmp_path: Path) -> None:
    settings = Settings(**tls(tmp_path))
    assert doctor.files(settings).status == OK
    os.chmod(settings.tlsKeyFilePath, 0o604)
    found = doctor.files(settings)
    assert found.status == FAILURE
    assert found.todo == f"chmod o= {settings.tlsKeyFilePath}"


def secret(path: Path, text: str = "") -> str:
    """A file that every user can read."""
    path.write_text(text)
    os.chmod(path, 0o604)
    return str(path)


def test_keys_of_object_stores_that_all_can_read(tmp_path: Path) -> None:
    keys = secret(tmp_path / "s3-credentials")
    found = doctor.files(Settings(objectStoreCredentialsFile=keys))
    assert (found.status, found.todo) == (FAILURE, f"chmod o= {keys}")


def test_logins_to_metadata_stores_that_all_can_read(tmp_path: Path) -> None:
    jaas, key = (secret(tmp_path / name) for name in ("jaas.conf", "key.pem"))
    config = secret(
        tmp_path / "zookeeper.properties",
        f"java.security.auth.login.config={jaas}\nzookeeper.ssl.keyStore.location={key}\n"
        f"zookeeper.ssl.trustStore.location={secret(tmp_path / 'ca.pem')}\n",
    )
    found = doctor.files(Settings(metadataStoreConfigPath=config))
    assert (found.status, found.todo) == (FAILURE, f"chmod o= {jaas} {key}")
    etcd = secret(
        tmp_path / "etcd.yaml", f"user: broker\npassword: secret\ntlsKeyFilePath: {key}\n"
    )
    found = doctor.files(Settings(metadataStoreConfigPath=etcd))
    assert (found.status, found.todo) == (FAILURE, f"chmod o= {etcd} {key}")
    gone = Settings(metadataStoreConfigPath=str(tmp_path / "gone"))
    assert doctor.files(gone).status == OK


def test_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run_security_doctor(None, {}, as_json=False)
    assert "Nothing is wide open." in capsys.readouterr().out
    opened = {"PULSARK_bindAddress": "0.0.0.0"}
    assert not doctor.run_security_doctor(None, opened, as_json=True)
