"""Commands that the broker sends and that need no more than a few fields. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.error_codes import error_code
from pulsark.wire.frames import NO_REQUEST

if TYPE_CHECKING:
    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.errors import ServerError

Command = pb.BaseCommand


def ping() -> Command:
    """A question for a sign of life."""
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return command


def auth_challenge(method: str, version: int) -> Command:
    """A question for new credentials, because those of the client have expired."""
    command = Command(type=Command.AUTH_CHALLENGE)
    command.authChallenge.challenge.auth_method_name = method
    command.authChallenge.challenge.auth_data = b"PulsarAuthRefresh"
    command.authChallenge.protocol_version = version
    return command


def success(request_id: int) -> Command:
    """The answer to a request of which only that is to be said."""
    command = Command(type=Command.SUCCESS)
    command.success.request_id = request_id
    return command


def request_error(request_id: int, error: Exception) -> Command:
    """The answer to a request that failed."""
    command = Command(type=Command.ERROR)
    command.error.request_id = request_id
    fill_error(command.error, error)
    return command


def layout_error(session_id: int, error: Exception) -> Command:
    """There is no layout for a lookup of Pulsar 5's clients, or none any more."""
    command = Command(type=Command.SCALABLE_TOPIC_UPDATE)
    command.scalableTopicUpdate.session_id = session_id
    fill_error(command.scalableTopicUpdate, error)
    return command


def share_error(request_id: int, error: Exception) -> Command:
    """A consumer of Pulsar 5's clients gets no share of a topic's segments."""
    command = Command(type=Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    command.scalableTopicSubscribeResponse.request_id = request_id
    fill_error(command.scalableTopicSubscribeResponse, error)
    return command


def watch_error(watch_id: int, error: Exception) -> Command:
    """A client of Pulsar 5 hears nothing of the topics of a namespace, or nothing any more."""
    command = Command(type=Command.WATCH_SCALABLE_TOPICS_UPDATE)
    command.watchScalableTopicsUpdate.watch_id = watch_id
    fill_error(command.watchScalableTopicsUpdate, error)
    return command


def fill_error(response: object, error: BaseException) -> None:
    """Tell an error in a response, in the two fields that it has for that."""
    code, text = "error", "message"
    if not hasattr(response, text):
        code, text = "error_code", "error_message"
    setattr(response, code, int(error_code(error)))
    setattr(response, text, str(error) or type(error).__name__)


def send_error(producer_id: int, sequence_id: int, code: ServerError, message: str) -> Command:
    """The answer to a SEND that is refused."""
    command = Command(type=Command.SEND_ERROR)
    command.send_error.producer_id = producer_id
    command.send_error.sequence_id = sequence_id
    command.send_error.error = int(code)  # type: ignore[assignment]
    command.send_error.message = message
    return command


def active_change(consumer_id: int, is_active: bool) -> Command:
    """Whether a Failover consumer is the active one."""
    command = Command(type=Command.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = is_active
    return command


def end_of_topic(consumer_id: int) -> Command:
    """The topic is terminated and nothing is left."""
    command = Command(type=Command.REACHED_END_OF_TOPIC)
    command.reachedEndOfTopic.consumer_id = consumer_id
    return command


def producer_closed(producer_id: int, there: ServiceUrls | None = None) -> Command:
    """The client has to create the producer anew, ``there`` if that is known."""
    command = Command(type=Command.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = NO_REQUEST
    if there is not None and there.broker:
        command.close_producer.assignedBrokerServiceUrl = there.broker
    if there is not None and there.broker_tls:
        command.close_producer.assignedBrokerServiceUrlTls = there.broker_tls
    return command


def consumer_closed(consumer_id: int, there: ServiceUrls | None = None) -> Command:
    """The client has to subscribe anew, ``there`` if that is known."""
    command = Command(type=Command.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = NO_REQUEST
    if there is not None and there.broker:
        command.close_consumer.assignedBrokerServiceUrl = there.broker
    if there is not None and there.broker_tls:
        command.close_consumer.assignedBrokerServiceUrlTls = there.broker_tls
    return command
