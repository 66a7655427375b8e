"""Certificates of clients that are none, on the three ports of a broker that demands them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from tests.fuzz.aftermath import log_lines
from tests.fuzz.live import EAGER
from tests.hostile.conftest import ATTACKER, secrets_of
from tests.hostile.test_tls import PORTS, Port, is_let_in
from tests.support.revocations import revocation_list
from tests.support.secured import Secured, token
from tests.support.wire_client import WireClient

PAST = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


class Demanding(NamedTuple):
    """The broker, a client that it takes, and one whose certificate was revoked."""

    broker: Secured
    taken: trustme.LeafCert
    revoked: trustme.LeafCert


@pytest.fixture(scope="module")
def demanding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demanding]:
    folder = tmp_path_factory.mktemp("demanding")
    revoked_path = folder / "revoked.pem"
    broker = Secured(
        folder,
        "--set=tlsRequireTrustedClientCertOnConnect=true",
        f"--set=tlsCrlFilePath={revoked_path}",
        "--set=logLevel=DEBUG",
        env=EAGER,
    )
    taken, revoked = (
        broker.authority.issue_cert(f"{name}@example.org", common_name=ATTACKER)
        for name in ("taken", "revoked")
    )
    revoked_path.write_bytes(revocation_list(broker.authority, revoked))
    broker.start(timeout=240)
    try:
        yield Demanding(broker, taken, revoked)
    finally:
        broker.stop()


@pytest.fixture(autouse=True)
def nothing_happened(demanding: Demanding, tmp_path: Path) -> Iterator[None]:
    """The same as for the other broker of this folder: it lives, serves, and logs no trace."""
    broker = demanding.broker
    pid = broker.pid
    yield
    assert broker.pid == pid
    assert log_lines(broker.log_path, secrets_of()) == []
    context = broker.context()
    demanding.taken.configure_cert(context)
    connection = broker.over_tls("brokerServiceUrlTls", context)
    with WireClient(0, token=token(ATTACKER), connection=connection):
        pass


@pytest.fixture(params=PORTS)
def port(demanding: Demanding, request: pytest.FixtureRequest) -> Port:
    return Port.of(demanding.broker, request.param)


def expired(own: Demanding) -> trustme.LeafCert:
    return own.broker.authority.issue_cert("expired@example.org", not_after=PAST)


def of_another_ca(_: Demanding) -> trustme.LeafCert:
    return trustme.CA().issue_cert("other@example.org", common_name=ATTACKER)


def for_itself(_: Demanding) -> trustme.LeafCert:
    """Signed by itself: it is no CA that anybody trusts."""
    authority = trustme.CA()
    return trustme.LeafCert(
        authority.private_key_pem.bytes(), authority.cert_pem.bytes(), [authority.cert_pem.bytes()]
    )


Issued = Callable[[Demanding], trustme.LeafCert]
WRONG: dict[str, Issued] = {
    "expired": expired,
    "of another CA": of_another_ca,
    "signed by itself": for_itself,
    "revoked": lambda own: own.revoked,
}


@pytest.mark.parametrize("issued", WRONG.values(), ids=WRONG.keys())
def test_certificates_that_are_not_taken(demanding: Demanding, port: Port, issued: Issued) -> None:
    context = demanding.broker.context()
    issued(demanding).configure_cert(context)
    assert not is_let_in(port, context)


def test_no_certificate(demanding: Demanding, port: Port) -> None:
    assert not is_let_in(port, demanding.broker.context())


def test_the_one_that_is_taken(demanding: Demanding, port: Port) -> None:
    context = demanding.broker.context()
    demanding.taken.configure_cert(context)
    assert is_let_in(port, context)


def test_a_certificate_without_its_key(demanding: Demanding, port: Port, tmp_path: Path) -> None:
    """Whoever has seen somebody's certificate cannot prove to be that."""
    theirs, own = demanding.taken, of_another_ca(demanding)
    context = demanding.broker.context()
    own.configure_cert(context)
    seen = tmp_path / "seen.pem"
    seen.write_bytes(
        own.cert_chain_pems[0].bytes() + b"".join(pem.bytes() for pem in theirs.cert_chain_pems)
    )
    key = tmp_path / "own.key"
    own.private_key_pem.write_to_path(str(key))
    context.load_cert_chain(seen, key)
    assert not is_let_in(port, context)
