"""Server contexts for TLS and their files, and the listener that bounds handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import uvloop

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.security import tls_listener
from pulsark.security.limits import TLS_HANDSHAKES_PER_ADDRESS_MAX
from pulsark.security.tls import ServerTls, TlsRules
from pulsark.security.tls_listener import TlsListener
from pulsark.security.trials import Trial, Trials
from tests.support.descriptors import no_descriptors
from tests.support.revocations import revocation_list

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Files:
    """A certificate with its key and a CA for clients, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.clients = trustme.CA()
        self.certificate = folder / "broker.pem"
        self.key = folder / "broker.key"
        self.trust = folder / "clients.pem"
        self.revoked = folder / "revoked.pem"
        self.issued: dict[str, trustme.LeafCert] = {}
        self.issue()
        self.clients.cert_pem.write_to_path(str(self.trust))

    def issue(self, *, key_only: bool = False) -> None:
        issued = self.authority.issue_cert("localhost", common_name="broker")
        issued.private_key_pem.write_to_path(str(self.key))
        os.chmod(self.key, 0o600)
        if not key_only:
            chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
            self.certificate.write_bytes(chain)

    def rules(self, **more: Any) -> TlsRules:
        return TlsRules(str(self.certificate), str(self.key), **more)

    def settings(self, **more: Any) -> Settings:
        paths = {
            "tlsCertificateFilePath": str(self.certificate),
            "tlsKeyFilePath": str(self.key),
        }
        return Settings(**{**paths, **more})

    def client(self, name: str = "") -> ssl.SSLContext:
        """A client's context; with ``name`` it has a certificate of that CN."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if name:
            issued = self.clients.issue_cert(f"{name}@example.org", common_name=name)
            issued.configure_cert(context)
            self.issued[name] = issued
        return context

    def revoke(
        self, issued: trustme.LeafCert, *, days: int = 1, authority: trustme.CA | None = None
    ) -> None:
        """Write a list with this certificate alone, which is valid for so many days."""
        self.revoked.write_bytes(revocation_list(authority or self.clients, issued, days))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def to_the_end(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, 60))

    return to_the_end


class Greeter(asyncio.Protocol):
    """Tells each client the name in its certificate, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast("asyncio.Transport", transport)
        known = client.get_extra_info("ssl_object").getpeercert(True)
        client.write(b"known" if known else b"unknown")
        client.close()


def listening(tls: ServerTls) -> tuple[TlsListener, int]:
    listener = TlsListener(lambda _: Greeter())
    port = listener.listen(["127.0.0.1"], 0, "brokerServicePortTls", tls.context())
    listener.serve()
    return listener, port


async def greeting(port: int, context: ssl.SSLContext) -> tuple[bytes, int]:
    """What the server says, and the serial number of its certificate."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    found = writer.get_extra_info("ssl_object").getpeercert()
    said = await reader.read()
    writer.close()
    return said, int(found["serialNumber"], 16)


async def refused(port: int, context: ssl.SSLContext) -> bool:
    """With TLS 1.3 a client notices at its first read that its certificate is refused."""
    with contextlib.suppress(OSError):
        return (await greeting(port, context))[0] == b""
    return True


async def failures(listener: TlsListener, count: int) -> None:
    """Return once so many handshakes have failed."""
    while listener.failed_handshakes < count:  # noqa: ASYNC110 - it is a plain counter
        await asyncio.sleep(0.001)


def test_a_client_is_served_with_and_without_a_certificate(files: Files, run: Run) -> None:
    async def main() -> None:
        listener, port = listening(ServerTls(files.rules(trust_path=str(files.trust))))
        assert (await greeting(port, files.client()))[0] == b"unknown"
        assert (await greeting(port, files.client("admin")))[0] == b"known"
        listener.close()

    run(main())


def test_a_client_of_another_ca_is_refused(files: Files, run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Files(tmp_path / "other")
    context = stranger.client("admin")
    files.authority.configure_trust(context)

    async def main() -> None:
        listener, port = listening(ServerTls(files.rules(trust_path=str(files.trust))))
        assert await refused(port, context)
        assert (await greeting(port, files.client("admin")))[0] == b"known"
        assert listener.failed_handshakes == 1
        listener.close()

    run(main())


def test_refused_certificates_are_told_of(files: Files, run: Run) -> None:
    """Not so other handshakes that fail."""
    cook = files.client("cook")
    files.revoke(files.issued["cook"])
    stranger = files.client()
    trustme.CA().issue_cert("x@example.org").configure_cert(stranger)
    told = []

    async def main() -> None:
        rules = files.rules(
            trust_path=str(files.trust),
            crl_path=str(files.revoked),
            require_client_certificate=True,
        )
        listener, port = listening(ServerTls(rules))
        listener.told = lambda host, why: told.append((host, why))
        for number, context in enumerate((cook, stranger, files.client())):
            assert await refused(port, context)
            await failures(listener, number + 1)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await failures(listener, 4)
        writer.close()
        listener.close()

    run(main())
    assert [host for host, _ in told] == ["127.0.0.1"] * 3
    assert [why for _, why in told] == [
        "certificate revoked",
        "unable to get local issuer certificate",
        "none was shown",
    ]


def test_a_revoked_certificate_is_refused(files: Files, run: Run) -> None:
    """From the next look at the files on; who has none comes in as before."""
    cook, chef = files.client("cook"), files.client("chef")
    issued = files.issued
    files.revoke(issued["chef"])

    async def main() -> None:
        rules = files.rules(trust_path=str(files.trust), crl_path=str(files.revoked))
        tls = ServerTls(rules)
        listener, port = listening(tls)
        assert (await greeting(port, files.client()))[0] == b"unknown"
        assert (await greeting(port, cook))[0] == b"known"
        assert await refused(port, chef)
        files.revoke(issued["cook"])
        assert tls.look_again()
        assert (await greeting(port, chef))[0] == b"known"
        assert await refused(port, cook)
        files.revoked.write_bytes(files.trust.read_bytes())
        assert not tls.look_again()
        assert await refused(port, cook)
        listener.close()

    run(main())


@pytest.mark.parametrize("days", [-1, None])
def test_without_a_list_that_is_valid_certificates_are_refused(
    files: Files, run: Run, days: int | None
) -> None:
    if days is None:  # it is another CA's
        other = trustme.CA()
        files.revoke(other.issue_cert("x@example.org"), authority=other)
    else:
        files.revoke(files.clients.issue_cert("x@example.org"), days=days)

    async def main() -> None:
        rules = files.rules(trust_path=str(files.trust), crl_path=str(files.revoked))
        listener, port = listening(ServerTls(rules))
        assert await refused(port, files.client("cook"))
        assert (await greeting(port, files.client()))[0] == b"unknown"
        listener.close()

    run(main())


def test_other_files_than_lists_of_revoked_certificates(files: Files) -> None:
    """A certificate among them would be a CA that is trusted."""
    rules = files.rules(trust_path=str(files.trust), crl_path=str(files.revoked))
    files.revoke(files.clients.issue_cert("x@example.org"))
    good = files.revoked.read_bytes()
    for wrong in (b"", b"junk", files.trust.read_bytes(), good + files.trust.read_bytes()):
        files.revoked.write_bytes(wrong)
        with pytest.raises(ConfigError, match="must have lists of revoked"):
            ServerTls(rules)
    files.revoked.write_bytes(good.replace(b"M", b"N", 3))
    with pytest.raises(ConfigError, match="cannot be used"):
        ServerTls(rules)
    files.revoked.unlink()
    with pytest.raises(ConfigError, match="tlsCrlFilePath"):
        ServerTls(rules)
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath: tlsCrlFilePath is set"):
        TlsRules.of(files.settings(tlsCrlFilePath="x"))


def test_a_new_certificate_holds_from_the_next_handshake_on(files: Files, run: Run) -> None:
    async def main() -> None:
        tls = ServerTls(files.rules())
        listener, port = listening(tls)
        _, before = await greeting(port, files.client())
        assert not tls.look_again()
        files.issue()
        assert (await greeting(port, files.client()))[1] == before
        assert tls.look_again()
        assert (await greeting(port, files.client()))[1] != before
        listener.close()

    run(main())


def test_files_can_be_looked_at_before_each_handshake(files: Files, run: Run) -> None:
    async def main() -> None:
        listener, port = listening(ServerTls(files.rules(), at_each_handshake=True))
        _, before = await greeting(port, files.client())
        files.issue()
        assert (await greeting(port, files.client()))[1] != before
        listener.close()

    run(main())


def test_a_half_written_pair_changes_nothing(
    files: Files, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        tls = ServerTls(files.rules())
        listener, port = listening(tls)
        _, before = await greeting(port, files.client())
        files.issue(key_only=True)
        assert not tls.look_again()
        assert not tls.look_again()
        assert (await greeting(port, files.client()))[1] == before
        assert caplog.text.count("keeping the old ones") == 1
        files.issue()
        assert tls.look_again()
        assert (await greeting(port, files.client()))[1] != before
        listener.close()

    run(main())


def test_a_new_certificate_that_could_not_be_read_is_read_later(
    files: Files, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        tls = ServerTls(files.rules())
        listener, port = listening(tls)
        _, before = await greeting(port, files.client())
        files.issue()
        with no_descriptors():
            assert not tls.look_again()
            assert not tls.look_again()
        assert caplog.text.count("Too many open files") == 1
        assert tls.look_again()
        assert (await greeting(port, files.client()))[1] != before
        listener.close()

    run(main())


def test_files_that_are_gone_are_told_once_each_time(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(files.rules())
    path = Path(files.rules().key_path)
    for times in (1, 2):
        moved = path.rename(path.with_suffix(".moved"))
        assert not tls.look_again()
        assert not tls.look_again()
        assert caplog.text.count("keeping the old ones") == times
        moved.rename(path)
        assert not tls.look_again()


def test_another_ca_of_clients_replaces_the_former(files: Files, run: Run) -> None:
    async def main() -> None:
        tls = ServerTls(files.rules(trust_path=str(files.trust), require_client_certificate=True))
        listener, port = listening(tls)
        old = files.client("admin")
        assert (await greeting(port, old))[0] == b"known"
        files.clients = trustme.CA()
        files.clients.cert_pem.write_to_path(str(files.trust))
        assert tls.look_again()
        assert (await greeting(port, files.client("admin")))[0] == b"known"
        assert await refused(port, old)
        listener.close()

    run(main())


def test_an_address_on_trial_is_closed_before_its_handshake(files: Files, run: Run) -> None:
    trials = Trials(10)
    served: list[Trial | None] = []

    class Noted(Greeter):
        def __init__(self, trial: Trial | None) -> None:
            served.append(trial)

    async def main() -> None:
        listener = TlsListener(Noted, lambda host: trials.begin(host, 0.0))
        context = ServerTls(files.rules()).context()
        port = listener.listen(["127.0.0.1"], 0, "brokerServicePortTls", context)
        listener.serve()
        assert (await greeting(port, files.client()))[0] == b"unknown"
        for _ in range(2):
            trials.failed("127.0.0.1", 0.0)
        assert await refused(port, files.client())
        trials.give_back("127.0.0.1", 0.0)
        assert (await greeting(port, files.client()))[0] == b"unknown"
        assert served[0] is None
        assert isinstance(served[1], Trial)
        assert (trials.refused, listener.failed_handshakes) == (1, 0)
        listener.close()

    run(main())


def test_unfinished_handshakes_of_one_address_are_bounded(files: Files, run: Run) -> None:
    async def main() -> None:
        listener, port = listening(ServerTls(files.rules()))
        silent = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(TLS_HANDSHAKES_PER_ADDRESS_MAX)
        ]
        late, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await late.read() == b""
        writer.close()
        assert listener.refused_handshakes == 1
        for _, one in silent:
            one.close()
            await one.wait_closed()
        await failures(listener, len(silent))
        assert (await greeting(port, files.client()))[0] == b"unknown"
        listener.close()

    run(main())


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
@pytest.mark.parametrize("limit", ["TLS_HANDSHAKES_MAX", "TLS_HANDSHAKES_PER_ADDRESS_MAX"])
def test_handshakes_that_take_long_make_room_for_others(
    files: Files, run: Run, monkeypatch: pytest.MonkeyPatch, limit: str, said: bytes
) -> None:
    monkeypatch.setattr(tls_listener, limit, 2)

    async def main() -> None:
        listener, port = listening(ServerTls(files.rules()))
        silent = []
        for _ in range(3):
            silent.append(await asyncio.open_connection("127.0.0.1", port))
            silent[-1][1].write(said)
        assert await silent[2][0].read() == b""
        assert listener.refused_handshakes == 1
        monkeypatch.setattr(tls_listener, "TLS_HANDSHAKE_SURE_SECONDS", 0)
        assert (await greeting(port, files.client()))[0] == b"unknown"
        assert await silent[0][0].read() == b""
        for _, one in silent:
            one.close()
        while listener._tasks or listener._shaking:  # noqa: ASYNC110 - plain counters
            await asyncio.sleep(0.001)
        listener.close()

    run(main())


def test_plain_bytes_end_in_a_close(files: Files, run: Run) -> None:
    async def main() -> None:
        listener, port = listening(ServerTls(files.rules()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.close()
        await failures(listener, 1)
        listener.close()

    run(main())


def test_old_versions_of_tls_are_refused(files: Files, run: Run) -> None:
    async def main() -> None:
        listener, port = listening(ServerTls(files.rules(protocols=("TLSv1.3",))))
        context = files.client()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await refused(port, context)
        assert (await greeting(port, files.client()))[0] == b"unknown"
        listener.close()

    run(main())


# -- settings ----------------------------------------------------------------------------------


def test_settings_become_rules(files: Files) -> None:
    ciphers = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256")
    settings = files.settings(tlsProtocols=("TLSv1.2",), tlsCiphers=ciphers)
    context = ServerTls(TlsRules.of(settings)).context("h2")
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    names = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] == "TLSv1.2"]
    assert names == ["ECDHE-RSA-AES128-GCM-SHA256"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tlsKeyFilePath": ""}, "tlsKeyFilePath: a port for TLS is set"),
        ({"tlsCertificateFilePath": ""}, "tlsCertificateFilePath: a port for TLS is set"),
        ({"tlsRequireTrustedClientCertOnConnect": True}, "tlsTrustCertsFilePath: .* needs a PEM"),
        ({"tlsCiphers": ("TLS_NONE",)}, "tlsCiphers: TLS_NONE is not known"),
        ({"tlsKeyFilePath": "/nowhere"}, "tlsKeyFilePath: /nowhere: No such file"),
    ],
)
def test_what_cannot_be_is_told_with_its_key(
    files: Files, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        ServerTls(TlsRules.of(files.settings(**changed)))


def test_files_that_do_not_fit_are_refused_at_start(files: Files) -> None:
    files.issue(key_only=True)
    with pytest.raises(ConfigError, match="the key is not that of the certificate"):
        ServerTls(files.rules())
    files.key.write_text("no key")
    with pytest.raises(ConfigError, match="tlsKeyFilePath"):
        ServerTls(files.rules())
    files.issue()
    files.trust.write_text("none")
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath"):
        ServerTls(files.rules(trust_path=str(files.trust)))


def test_a_key_that_others_can_read_is_told(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    os.chmod(files.key, 0o644)
    ServerTls(files.rules())
    assert "every user of this machine can use" in caplog.text
