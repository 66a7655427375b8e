"""The handshake alone."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.connection.handshake import PROTOCOL_VERSION, Handshake, HandshakeState
from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb

Command = pb.BaseCommand


def connect(version: int) -> pb.BaseCommand:
    command = Command(type=Command.CONNECT)
    command.connect.client_version = "c" * 1000
    command.connect.protocol_version = version
    return command


@pytest.mark.parametrize("version", [0, 21, 99])
def test_both_sides_speak_what_the_older_one_speaks(version: int) -> None:
    handshake = Handshake(Settings(maxMessageSize=1 << 20))
    handshake.hear(connect(version))
    assert handshake.state is HandshakeState.LOGGING_IN
    answer = handshake.answer().connected
    assert answer.protocol_version == handshake.protocol_version == min(version, PROTOCOL_VERSION)
    assert answer.max_message_size == 1 << 20
    assert handshake.state is HandshakeState.CONNECTED
    assert handshake.client_version == "c" * 128


def test_nothing_else_comes_before_it() -> None:
    handshake = Handshake(Settings())
    with pytest.raises(ProtocolError, match="LOOKUP before CONNECT"):
        handshake.hear(Command(type=Command.LOOKUP))
    assert handshake.state is HandshakeState.CONNECTING


def test_nothing_else_comes_before_its_answer() -> None:
    handshake = Handshake(Settings())
    handshake.hear(connect(21))
    with pytest.raises(ProtocolError, match="CONNECT before CONNECT was answered"):
        handshake.hear(connect(21))
