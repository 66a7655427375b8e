"""A real ZooKeeper whose clients come over TLS, show certificates and log in."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from pulsark.metadata.zookeeper.digest_login import DigestLogin
from pulsark.processes.java_process import free_port
from pulsark.processes.zookeeper_server import ZooKeeperServer
from tests.support.certificates import Authority

LOGIN = DigestLogin("pulsark", "a password")


class TlsZooKeeperServer(ZooKeeperServer):
    """It also has its plain port, for the question whether it serves."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory)
        self._authority = authority
        self.secure_port = free_port()

    def command(self) -> list[str]:
        command = super().command()
        with open(command[-1], "a") as configuration:
            configuration.write(
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"secureClientPort={self.secure_port}\nsecureClientPortAddress=127.0.0.1\n"
                f"ssl.keyStore.location={own_of(self._authority, '127.0.0.1')}\n"
                f"ssl.trustStore.location={self._authority.trust}\n"
                "ssl.keyStore.type=PEM\nssl.trustStore.type=PEM\nssl.clientAuth=need\n"
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
                "enforce.auth.enabled=true\nenforce.auth.schemes=sasl\n"
            )
        jaas = self.directory / "jaas.conf"
        users = f'user_{LOGIN.name}="{LOGIN.password}"'
        jaas.write_text(
            f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required {users}; }};\n"
        )
        command.insert(1, f"-Djava.security.auth.login.config={jaas}")
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        jars = Path(spec.origin).parent / "jars"
        netty = [str(jar) for jar in jars.glob("netty-*.jar") if "netty-all" not in jar.name]
        place = command.index("-cp") + 1
        command[place] = os.pathsep.join([command[place], *netty])
        return command


def own_of(authority: Authority, name: str) -> str:
    """A file with certificate and key, as ZooKeeper wants them in PEM."""
    certificate, key = authority.issue(name)
    both = Path(certificate).with_suffix(".both.pem")
    both.write_text(Path(key).read_text() + Path(certificate).read_text())
    return str(both)
