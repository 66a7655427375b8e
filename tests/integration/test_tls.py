"""The ports over TLS, with the official client and a plain HTTPS client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.flight as fl
import pytest
import trustme

from pulsark.admin_client.credentials import Credentials
from pulsark.config.settings import Settings
from pulsark.dispatch.spark.flight_requests import PREFACE
from pulsark.runtime import Runtime
from pulsark.standalone import Standalone as InProcess
from tests.support.standalone import Standalone


class Certificates:
    """A CA that clients trust, and a certificate of the broker from it."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.trust, self.certificate, self.key = (
            folder / name for name in ("ca.pem", "broker.pem", "broker.key")
        )
        self._authority.cert_pem.write_to_path(str(self.trust))
        self.issue()

    def issue(self) -> None:
        issued = self._authority.issue_cert("localhost")
        for path, content in (
            (self.key, issued.private_key_pem.bytes()),
            (self.certificate, b"".join(pem.bytes() for pem in issued.cert_chain_pems)),
        ):
            new = path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_bytes(content)
            os.replace(new, path)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "tlsCertificateFilePath": str(self.certificate),
            "tlsKeyFilePath": str(self.key),
        }

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.trust))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standalone]:
    more = {
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "flightServicePortTls": 0,
        "tlsCertRefreshCheckDurationSec": 0,
    }
    words = [f"--set={key}={value}" for key, value in {**more, **certificates.settings}.items()]
    with Standalone(tmp_path_factory.mktemp("tls") / "data", *words) as standalone:
        yield standalone


def fetch(url: str, path: str, context: ssl.SSLContext) -> Any:
    with urllib.request.urlopen(url + path, context=context, timeout=60) as answer:
        return json.load(answer)


def test_the_official_client_publishes_and_consumes(
    secured: Standalone, certificates: Certificates
) -> None:
    url = secured.info["brokerServiceUrlTls"]
    assert url.startswith("pulsar+ssl://")
    client = pulsar.Client(url, tls_trust_certs_file_path=str(certificates.trust))
    consumer = client.subscribe("tls", "s")
    producer = client.create_producer("tls")
    sent = [os.urandom(size) for size in (10, 100_000, 3_000_000)]
    for payload in sent:
        producer.send(payload)
    assert [consumer.receive(60_000).data() for _ in sent] == sent
    client.close()


def test_a_client_that_does_not_trust_the_certificate_leaves(
    secured: Standalone, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    client = pulsar.Client(
        secured.info["brokerServiceUrlTls"],
        tls_trust_certs_file_path=str(other),
        operation_timeout_seconds=2,
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("tls")
    client.close()


def test_the_command_line(secured: Standalone, certificates: Certificates) -> None:
    trust = ["--tls-trust-cert-path", str(certificates.trust)]
    admin = ["--admin-url", secured.info["webServiceUrlTls"]]
    service = ["--service-url", secured.info["brokerServiceUrlTls"]]
    topic = "by-command"
    assert run_pulsark(*trust, "topics", "create", topic, *admin).returncode == 0
    assert run_pulsark(*trust, "produce", topic, "-m", "hello", *service).returncode == 0
    words = ["consume", topic, "-s", "s", "-n", "1", "--position", "earliest", *service]
    assert "hello" in run_pulsark(*trust, *words).stdout
    refused = run_pulsark("topics", "list", *admin)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "the broker's certificate is not trusted" in refused.stderr


def run_pulsark(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pulsark", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_lookup_tells_both_addresses(secured: Standalone, certificates: Certificates) -> None:
    path = "/lookup/v2/topic/persistent/public/default/tls"
    found = fetch(secured.info["webServiceUrlTls"], path, certificates.context())
    assert found["brokerUrl"] == secured.service_url
    assert found["brokerUrlTls"] == secured.info["brokerServiceUrlTls"]
    assert found["httpUrl"] == secured.web_url
    assert found["httpUrlTls"] == secured.info["webServiceUrlTls"]
    client = pulsar.Client(
        secured.info["webServiceUrlTls"], tls_trust_certs_file_path=str(certificates.trust)
    )
    client.create_producer("tls-by-http").send(b"x")
    client.close()


def test_a_new_certificate_is_used_without_a_restart(
    secured: Standalone, certificates: Certificates
) -> None:
    def certificate(url: str) -> str:
        host, port = url.rsplit("/", 1)[1].split(":")
        return ssl.get_server_certificate((host, int(port)), ca_certs=str(certificates.trust))

    urls = [
        secured.info[key] for key in ("brokerServiceUrlTls", "webServiceUrlTls", "flightUrlTls")
    ]
    before = [certificate(url) for url in urls]
    certificates.issue()
    after = [certificate(url) for url in urls]
    assert len(set(after)) == 1
    assert before[0] != after[0]


def test_plain_ports_can_be_closed(certificates: Certificates, tmp_path: Path) -> None:
    settings = Settings(
        dataDir=str(tmp_path / "data"),
        managedLedgerDefaultEnsembleSize=1,
        managedLedgerDefaultWriteQuorum=1,
        managedLedgerDefaultAckQuorum=1,
        brokerServicePort=None,
        webServicePort=None,
        flightServicePort=None,
        brokerServicePortTls=0,
        webServicePortTls=0,
        **certificates.settings,
    )

    async def main() -> None:
        standalone = InProcess(settings, Runtime(), lambda error: None)
        info = await standalone.start()
        try:
            assert {key for key in info if key.endswith(("Url", "Tls"))} == {
                "brokerServiceUrlTls",
                "webServiceUrlTls",
            }
            found = await asyncio.to_thread(
                fetch,
                info["webServiceUrlTls"],
                "/admin/v2/clusters/standalone",
                certificates.context(),
            )
            assert found["serviceUrlTls"] == info["webServiceUrlTls"]
            assert found["brokerServiceUrlTls"] == info["brokerServiceUrlTls"]
            assert "serviceUrl" not in found
        finally:
            await standalone.stop()

    asyncio.run(main())


def test_flight_over_tls(secured: Standalone, certificates: Certificates) -> None:
    """Large answers and several calls at a time; plain bytes end in a close."""
    client = pulsar.Client(
        secured.info["brokerServiceUrlTls"], tls_trust_certs_file_path=str(certificates.trust)
    )
    producer = client.create_producer("flight", batching_enabled=False)
    sent = [os.urandom(1_000_000) for _ in range(8)]
    for payload in sent:
        producer.send(payload)
    client.close()
    path = "/admin/v2/persistent/public/default/flight/segments"
    plan = fetch(secured.info["webServiceUrlTls"], path, certificates.context())
    assert plan["flightUrl"] == secured.info["flightUrlTls"]
    (partition,) = plan["partitions"]
    (ledger,) = partition["ledgers"]
    ticket = {
        "topic": "persistent://public/default/flight",
        "topicId": partition["topicId"],
        "first": [ledger["ledgerId"], 0],
        "last": [ledger["ledgerId"], len(sent) - 1],
        "compacted": False,
    }
    credentials = Credentials.of(trust_path=str(certificates.trust))
    with fl.connect(plan["flightUrl"], **credentials.for_flight()) as flight:
        wanted = fl.Ticket(json.dumps(ticket).encode())
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: flight.do_get(wanted).read_all(), range(8)))
    for answer in answers:
        entries = [entry.as_py() for entry in answer.column(2)]
        assert [
            entry[-len(payload) :] for entry, payload in zip(entries, sent, strict=True)
        ] == sent
    host, port = plan["flightUrl"].rsplit("/", 1)[1].split(":")
    with socket.create_connection((host, int(port)), 10) as plain:
        plain.sendall(PREFACE)
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(1) == b""
