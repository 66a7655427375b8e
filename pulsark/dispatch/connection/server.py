"""The TCP listener of the binary protocol."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pulsark.dispatch.connection.connection import Connection
from pulsark.dispatch.connection.handlers import handlers_of
from pulsark.security.plain_listener import PlainListener

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Sequence

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.connection.revocation import Revocation
    from pulsark.dispatch.connection.shared_port import SharedClients, SharedPort
    from pulsark.security.tls_listener import TlsListener
    from pulsark.security.trials import Trial


class Server:
    """Accepts clients of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handlers = handlers_of(broker)
        self._begin_trial = None if broker.logins is None else broker.logins.begin_trial
        self._plain = PlainListener(self._connect, self._begin_trial, broker.connections.slots)
        self._over_tls: TlsListener | None = None
        self._shared: SharedClients | None = None
        self._revocation: Revocation | None = None
        if broker.authorization is not None:
            from pulsark.dispatch.connection.revocation import Revocation  # for those who need it

            self._revocation = Revocation(broker, broker.authorization)

    def _connect(self, trial: Trial | None) -> Connection:
        return Connection(self._broker, self._handlers, trial)

    def listen(self, hosts: Sequence[str], port: int) -> int:
        """Take the port; returns it (``port`` 0 takes a free one). ``ConfigError`` if in use.

        No client is served before ``serve``.
        """
        return self._plain.listen(hosts, port, "brokerServicePort")

    def listen_tls(self, hosts: Sequence[str], port: int, context: ssl.SSLContext) -> int:
        """The same for clients over TLS."""
        from pulsark.security.tls_listener import TlsListener  # for those who need it

        self._over_tls = TlsListener(
            self._connect, self._begin_trial, self._broker.connections.slots
        )
        if self._broker.audit is not None:
            self._over_tls.told = partial(self._broker.audit.certificate_refused, "binary")
        return self._over_tls.listen(hosts, port, "brokerServicePortTls", context)

    def share(self, port: SharedPort) -> None:
        """Accept clients of a port at which other brokers answer, too."""
        from pulsark.dispatch.connection.shared_port import SharedClients  # for those who need it

        self._shared = SharedClients(port, self._plain.take, self._broker.connections.slots)

    def share_tls(self, listeners: Sequence[socket.socket]) -> None:
        """The same over TLS; such a client stays at the broker that accepted it."""
        if self._over_tls is not None:
            self._over_tls.share(listeners)

    def serve(self) -> None:
        """Accept clients: the broker has started, and knows the addresses that it tells them."""
        if self._revocation is not None:
            self._revocation.start()
        self._plain.serve()
        if self._over_tls is not None:
            self._over_tls.serve()
        if self._shared is not None:
            self._shared.open()

    def close(self) -> None:
        """Accept no more clients."""
        if self._revocation is not None:
            self._revocation.close()
        self._plain.close()
        if self._shared is not None:
            self._shared.close()
        if self._over_tls is not None:
            self._over_tls.close()
