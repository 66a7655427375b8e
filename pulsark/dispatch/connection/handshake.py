"""The handshake: what client and broker tell each other before anything else."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pulsark import __version__
from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

PROTOCOL_VERSION = 21
SERVER_VERSION = f"Pulsark-{__version__}"

_CLIENT_VERSION_CHARS_MAX = 128


class HandshakeState(Enum):
    """``CONNECTING`` -> ``LOGGING_IN`` -> ``CONNECTED`` -> ``CLOSED``; a failed one skips the rest.

    Without authentication nobody has to log in.
    """

    CONNECTING = "connecting"
    LOGGING_IN = "logging in"
    CONNECTED = "connected"
    CLOSED = "closed"


class Handshake:
    """How far the handshake with one client is, and what it told of itself.

    Until it is done, `hear` is all that the client's commands reach.
    """

    def __init__(self, settings: Settings) -> None:
        self.state = HandshakeState.CONNECTING
        self.client_version = ""
        self.protocol_version = 0
        self._settings = settings

    def hear(self, command: pb.BaseCommand) -> pb.CommandConnect:
        """The CONNECT in the first command; ``ProtocolError`` for all others."""
        if command.type != pb.BaseCommand.CONNECT or self.state is not HandshakeState.CONNECTING:
            name = pb.BaseCommand.Type.Name(command.type)
            raise ProtocolError(f"command {name} before CONNECT was answered")
        connect = command.connect
        self.client_version = connect.client_version[:_CLIENT_VERSION_CHARS_MAX]
        self.protocol_version = min(connect.protocol_version, PROTOCOL_VERSION)
        self.state = HandshakeState.LOGGING_IN
        return connect

    def answer(self) -> pb.BaseCommand:
        """The client is let in: what it is told."""
        self.state = HandshakeState.CONNECTED
        return self._connected()

    def _connected(self) -> pb.BaseCommand:
        """What both sides speak, and what the broker can do."""
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECTED)
        answer = command.connected
        answer.server_version = SERVER_VERSION
        answer.protocol_version = self.protocol_version
        answer.max_message_size = self._settings.maxMessageSize
        features = answer.feature_flags
        features.supports_get_partitioned_metadata_without_auto_creation = True
        features.supports_topic_watchers = (
            self._settings.enableBrokerSideSubscriptionPatternEvaluation
        )
        features.supports_scalable_topics = self._settings.scalableTopicsEnabled
        return command
