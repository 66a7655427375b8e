"""What client and broker tell each other first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark import __version__
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

PROTOCOL_VERSION = 21
SERVER_VERSION = f"Pulsark-{__version__}"


def connected(connect: pb.CommandConnect, settings: Settings) -> pb.BaseCommand:
    """The answer to CONNECT: what both sides speak, and what the broker can do."""
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECTED)
    answer = command.connected
    answer.server_version = SERVER_VERSION
    answer.protocol_version = min(connect.protocol_version, PROTOCOL_VERSION)
    answer.max_message_size = settings.maxMessageSize
    features = answer.feature_flags
    features.supports_get_partitioned_metadata_without_auto_creation = True
    features.supports_topic_watchers = settings.enableBrokerSideSubscriptionPatternEvaluation
    return command
