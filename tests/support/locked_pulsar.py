"""Apache Pulsar with tokens for logins, and with rights: what ours are compared with."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.brokers import Pulsar
from tests.support.secured import SECRET, SUPER_USER, token

START_SECONDS = 180
_TOKENS = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"


class LockedPulsar(Pulsar):
    """Such a process. Its topics are small, and so is its memory."""

    MEMORY = ("-Xms256m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseSerialGC")

    def __init__(self, folder: Path) -> None:
        secret = folder / "secret.key"
        secret.write_bytes(SECRET)
        super().__init__(
            folder / "pulsar",
            authenticationEnabled="true",
            authenticationProviders=_TOKENS,
            authorizationEnabled="true",
            superUserRoles=SUPER_USER,
            tokenSecretKey=secret.as_uri(),
            brokerClientAuthenticationPlugin=(
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            brokerClientAuthenticationParameters=f"token:{token(SUPER_USER)}",
            transactionCoordinatorEnabled="true",
        )

    def __enter__(self) -> LockedPulsar:
        self.prepare()
        self.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"Pulsar is not ready after {START_SECONDS} s")
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/namespaces/public/default",
            headers={"Authorization": f"Bearer {token(SUPER_USER)}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10):
                return True
        except (OSError, urllib.error.HTTPError):
            return False
