"""The broker that the official Python client's suite connects to: who may do what there.

The suite brings a configuration, certificates of a CA of its own and a file of passwords, and reads
a token from a file in its folder. Calls without credentials are those of the role ``anonymous``,
which may do everything in the tenant ``public``; the tenant ``private`` is for the token's role.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt

from tests.support.local_cluster import LocalCluster
from tests.support.standalone import Standalone

PORTS = (6650, 6651, 8080, 8443)
"""Of the binary protocol and HTTP, each also over TLS, as in the suite's configuration."""

CONF = Path("test-conf")
TOKEN = ".test-token.txt"
SUPER_USER, TOKEN_ROLE, ANONYMOUS = "superUser", "token-principal", "anonymous"
TOKEN_SECONDS = 24 * 3600
SECRET = bytes(range(32))
BOTH = ["produce", "consume"]


@contextmanager
def locked_broker(
    suite: Path, work: Path, brokers: int = 1, *, cluster: bool = False
) -> Iterator[Standalone]:
    """A standalone, or a cluster, as the suite's tests want it, while they run."""
    key = work / "secret.key"
    key.touch(mode=0o600)
    key.write_bytes(SECRET)
    conf = suite / CONF
    settings = {
        "bindAddress": "localhost",
        "tlsCertificateFilePath": conf / "broker-cert.pem",
        "tlsKeyFilePath": conf / "broker-key.pem",
        "tlsTrustCertsFilePath": conf / "cacert.pem",
        "tokenSecretKey": f"file://{key}",
        "basicAuthConf": conf / ".htpasswd",
    }
    words = [f"--set={name}={value}" for name, value in settings.items()]
    words += ["--conf", str(conf / "standalone-ssl.conf")]
    words += ["--brokers", str(brokers)] if brokers > 1 or cluster else []
    (suite / TOKEN).write_text(token_of(TOKEN_ROLE))
    kind = LocalCluster if cluster else Standalone
    with kind(work / "data", *words, ports=(PORTS[0], PORTS[2], 0)) as standalone:
        give_rights(standalone.web_url)
        yield standalone


def token_of(role: str) -> str:
    claims = {"sub": role, "exp": int(time.time()) + TOKEN_SECONDS}
    return jwt.encode(claims, SECRET, "HS256")


def give_rights(web_url: str) -> None:
    """What the start script of the suite's own broker does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(method: str, path: str, body: Any) -> None:
        request = urllib.request.Request(
            f"{web_url}/admin/v2/{path}",
            method=method,
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {token_of(SUPER_USER)}",
            },
        )
        opener.open(request, timeout=10).close()

    def rights_of(role: str) -> dict[str, Any]:
        return {"auth_policies": {"namespace_auth": {role: BOTH}}}

    clusters = {"allowedClusters": ["standalone"]}
    call("POST", "tenants/public", {"adminRoles": [ANONYMOUS], **clusters})
    call("POST", f"namespaces/public/default/permissions/{ANONYMOUS}", BOTH)
    call("PUT", "namespaces/public/default-2", rights_of(ANONYMOUS))
    call("PUT", "tenants/private", {"adminRoles": [], **clusters})
    call("PUT", "namespaces/private/auth", rights_of(TOKEN_ROLE))
