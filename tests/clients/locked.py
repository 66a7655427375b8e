"""A locked broker with an issuer beside it, and what clients of any language show it.

The role ``cook`` is what each way to log in leads to; it is the administrator of the tenant
``cafe``. A ``stranger`` logs in and has no rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from passlib.hash import apr_md5_crypt

from pulsark.admin_client.client import AdminClient
from pulsark.admin_client.credentials import Credentials
from tests.support.certificates import Authority
from tests.support.issuer import AUDIENCE, Issuer, serving
from tests.support.logging_in import SECRET, token
from tests.support.standalone import Standalone

NAMESPACE = "cafe/shop"
COOK, STRANGER, CHIEF = "cook", "stranger", "chief"
BRIEF = "brief"
"""A cook whose tokens from the issuer end soon."""

BRIEF_SECONDS = 3
ANSWER_SECONDS = 10
PUBLISHING_SECONDS = 4 * BRIEF_SECONDS
"""Time for two such tokens to end."""

PATIENCE_SECONDS = 60
"""For what takes no time but on a machine that is busy with other things."""


@dataclass
class Locked:
    """A running broker, its issuer, and where to find them and all credentials."""

    standalone: Standalone
    issuer: Issuer
    values: dict[str, str]
    file: Path
    """Has the values as properties, for programs."""
    admin: AdminClient

    def connections(self, topic: str) -> list[str]:
        """Since when the producers and consumers of a topic are connected, and from where."""
        path = topic.replace("://", "/")
        stats = self.admin.call("GET", f"/{path}/stats")
        consumers = [each for s in stats["subscriptions"].values() for each in s["consumers"]]
        return [f"{e['address']} {e['connectedSince']}" for e in stats["publishers"] + consumers]


@contextmanager
def locked(home: Path) -> Iterator[Locked]:
    """All of it, while this lasts."""
    names = {name: f"secret of {name}" for name in (COOK, STRANGER, BRIEF)}
    seconds = {COOK: 600, STRANGER: 600, BRIEF: BRIEF_SECONDS}
    authority = Authority(home)
    with serving(Issuer(names, seconds)) as issuer:
        words = [f"--set={name}={value}" for name, value in _settings(home, authority, issuer)]
        with Standalone(home / "data", *words) as standalone:
            admin = _admin(standalone, authority)
            tenant = {"adminRoles": [COOK, BRIEF], "allowedClusters": ["standalone"]}
            admin.call("PUT", "/tenants/cafe", tenant)
            admin.call("PUT", f"/namespaces/{NAMESPACE}")
            values = {**_values(home, authority, issuer), **_addresses(standalone)}
            file = home / "values"
            file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
            yield Locked(standalone, issuer, values, file, admin)


def _settings(home: Path, authority: Authority, issuer: Issuer) -> Iterator[tuple[str, object]]:
    certificate, key = authority.issue("localhost")
    users = home / "users"
    lines = (f"{role}:{apr_md5_crypt.hash(_password(role))}" for role in (COOK, STRANGER))
    users.write_text("\n".join(lines))
    secret = home / "secret.key"
    secret.write_bytes(SECRET)
    yield "brokerServicePortTls", 0
    yield "webServicePortTls", 0
    yield "tlsCertificateFilePath", certificate
    yield "tlsKeyFilePath", key
    yield "tlsTrustCertsFilePath", authority.trust
    yield "authenticationEnabled", "true"
    yield "authenticationProviders", "token,openid,basic,tls"
    yield "authenticationRefreshCheckSeconds", ANSWER_SECONDS
    yield "tokenSecretKey", f"file://{secret}"
    yield "basicAuthConf", users
    yield "openIDAllowedTokenIssuers", issuer.url
    yield "openIDAllowedAudiences", AUDIENCE
    yield "openIDRequireIssuersUseHttps", "false"
    yield "authorizationEnabled", "true"
    yield "superUserRoles", CHIEF
    yield "logLevel", "INFO"


def _admin(standalone: Standalone, authority: Authority) -> AdminClient:
    chief = Credentials("token", {"token": token({"sub": CHIEF}).decode()}, str(authority.trust))
    url = standalone.info["webServiceUrlTls"]
    admin = AdminClient(url, PATIENCE_SECONDS, known=True, credentials=chief)
    admin.call("GET", "/tenants")  # the first request imports the server, and may be repeated
    admin.patience_s = 0.0
    return admin


def _addresses(standalone: Standalone) -> dict[str, str]:
    return {
        "service_url": standalone.info["brokerServiceUrlTls"],
        "web_url": standalone.info["webServiceUrlTls"],
    }


def _values(home: Path, authority: Authority, issuer: Issuer) -> dict[str, str]:
    values = {
        "namespace": f"persistent://{NAMESPACE}",
        "trust": str(authority.trust),
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "brief_tokens": f"{issuer.url}/signed/{COOK}/{BRIEF_SECONDS}/",
        "patience_seconds": str(PATIENCE_SECONDS),
        "publishing_seconds": str(PUBLISHING_SECONDS),
        "forged_token": token({"sub": COOK}, b"x" * 32).decode(),
    }
    for role in (COOK, STRANGER):
        values[f"{role}_token"] = token({"sub": role}).decode()
        values[f"{role}_password"] = _password(role)
        values[f"{role}_certificate"], values[f"{role}_key"] = authority.issue("client", role)
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    foreign = Authority(elsewhere).issue("client", COOK)
    values["foreign_certificate"], values["foreign_key"] = foreign
    for client, secret in (*issuer.secrets.items(), ("wrong", "no secret of this client")):
        file = home / f"{client}.json"
        known = COOK if client == "wrong" else client
        file.write_text(
            json.dumps({"type": "client_credentials", "client_id": known, "client_secret": secret})
        )
        values[f"{client}_credentials"] = str(file)
    return values


def _password(role: str) -> str:
    return f"password of {role}"
