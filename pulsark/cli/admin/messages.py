"""``pulsark produce`` and ``pulsark consume``, with the official Pulsar client."""

from __future__ import annotations

import base64
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pulsark.cli.admin.access import credentials
from pulsark.cli.terminal.client_log import ClientLog
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json_line
from pulsark.log_format import escaped

TYPES = {
    "exclusive": "Exclusive",
    "shared": "Shared",
    "failover": "Failover",
    "key_shared": "KeyShared",
}
POSITIONS = {"earliest": "Earliest", "latest": "Latest"}

PENDING_MESSAGES_MAX = 1000
"""Messages under way at once: enough to fill batches, few enough to stay small."""

_POLL_MILLIS = 250
"""The client's receive call does not see Ctrl-C: it is asked in slices of this length."""

_CONNECT_TIMEOUT_SECONDS = 10

_MEANINGS = {
    "ConsumerBusy": "the subscription has another consumer and does not share",
    "InvalidTopicName": "this is no name of a topic; short ones are NAME or TENANT/NAMESPACE/NAME",
    "NotAllowedError": "the broker does not serve this kind of topic or subscription",
}
"""Errors that come without the broker's words."""


@dataclass(frozen=True, slots=True)
class MessageOutput:
    """How results are printed."""

    as_json: bool

    def sent(self, message_id: str, text: str) -> None:
        """A message is durable."""
        if self.as_json:
            print_json_line({"messageId": message_id, "size": len(text.encode())})
        else:
            print(message_id, flush=True)

    def received(self, message: Any) -> None:
        """A message arrived."""
        data = message.data()
        try:
            payload: dict[str, Any] = {"payload": data.decode()}
        except UnicodeDecodeError:
            payload = {"payloadBase64": base64.b64encode(data).decode()}
        if not self.as_json:
            key = message.partition_key()
            text = payload.get("payload") or payload.get("payloadBase64", "")
            print(f"{escaped(key)}\t{text}" if key else text, flush=True)
            return
        print_json_line(
            {
                "messageId": message_id_text(message.message_id()),
                "topic": message.topic_name(),
                "key": message.partition_key() or None,
                "properties": message.properties(),
                "publishTime": message.publish_timestamp(),
                "eventTime": message.event_timestamp() or None,
                **payload,
            }
        )


def message_id_text(message_id: Any) -> str:
    """``ledger:entry:partition:batch`` of the client's message id."""
    parts = (
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.partition(),
        message_id.batch_index(),
    )
    return ":".join(map(str, parts))


@contextmanager
def connected_client(service_url: str, log: ClientLog) -> Iterator[tuple[Any, Any]]:
    """The client library and a connected client; its errors become one line."""
    try:
        import pulsar
    except ImportError as error:
        raise CommandError(
            "the official client is not installed; `pip install pulsar-client` brings it"
        ) from error
    _check_reachable(service_url)
    try:
        client = pulsar.Client(
            service_url,
            operation_timeout_seconds=_CONNECT_TIMEOUT_SECONDS,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, log.path),
            **credentials().for_client(pulsar),
        )
    except (pulsar.PulsarException, ValueError) as error:
        raise CommandError(f"{service_url}: {error}") from error
    try:
        yield pulsar, client
    except pulsar.PulsarException as error:
        raise CommandError(f"{service_url}: {_reason(error, log.brokers_words())}") from error
    finally:
        client.close()


def _check_reachable(service_url: str) -> None:
    """Fail at once if no broker listens: the client itself would retry for a while."""
    scheme, _, hosts = service_url.partition("://")
    if scheme not in ("pulsar", "pulsar+ssl", "http", "https"):
        raise CommandError(f"--service-url {service_url}: write pulsar://HOST:PORT")
    problem = ""
    for host in hosts.split(","):
        try:
            address = urlsplit(f"//{host}")
            port = address.port or (6650 if scheme.startswith("pulsar") else 8080)
            socket.create_connection((address.hostname or "", port), 5).close()
        except (OSError, ValueError) as error:
            problem = str(error)
        else:
            return
    raise CommandError(f"no answer from a broker at {service_url} ({problem}); is it running?")


def _reason(error: Exception, brokers_words: str | None) -> str:
    name = type(error).__name__
    if brokers_words is not None:
        return f"{brokers_words} ({name})"
    if name in ("ConnectError", "Timeout", "RetryableError"):
        # The library tries again whatever the broker says before it has let a client in.
        return (
            f"no answer from a broker ({name}); is it running, does it take this login, and is "
            "its certificate trusted here? See pulsark --help"
        )
    return f"{_MEANINGS[name]} ({name})" if name in _MEANINGS else f"{name}: {error}"


def run_produce(
    service_url: str,
    topic: str,
    messages: Sequence[str],
    key: str | None,
    properties: dict[str, str],
    count: int,
    output: MessageOutput,
) -> None:
    """Publish ``messages`` (or the lines of stdin) ``count`` times, in order."""
    texts: Iterator[str] = (
        (text for _ in range(count) for text in messages)
        if messages
        else (line.rstrip("\n") for line in sys.stdin for _ in range(count))
    )
    with connected_client(service_url, ClientLog()) as (pulsar, client):
        producer = client.create_producer(
            topic, block_if_queue_full=True, batching_enabled=True, batching_max_publish_delay_ms=1
        )
        results: deque[tuple[str, str]] = deque()
        failures: list[str] = []
        sent = 0

        def done(result: Any, message_id: Any, text: str) -> None:
            if result == pulsar.Result.Ok:
                results.append((message_id_text(message_id), text))
            else:
                failures.append(str(result).removeprefix("Result."))

        try:
            for text in texts:
                producer.send_async(
                    text.encode(),
                    lambda result, message_id, text=text: done(result, message_id, text),
                    properties=properties or None,
                    partition_key=key,
                )
                sent += 1
                if sent % PENDING_MESSAGES_MAX == 0 or not messages:
                    producer.flush()
                while results:
                    output.sent(*results.popleft())
                if failures:
                    break
            producer.flush()
        except KeyboardInterrupt:
            producer.flush()
        while results:
            output.sent(*results.popleft())
        producer.close()
    if failures:
        raise CommandError(f"{len(failures)} of {sent} messages were not stored: {failures[0]}")


def run_consume(
    service_url: str,
    topic: str,
    subscription: str,
    type_name: str,
    position_name: str,
    number: int,
    timeout_s: float | None,
    output: MessageOutput,
) -> None:
    """Print and acknowledge messages until ``number``, a pause of ``timeout_s`` or Ctrl-C."""
    log = ClientLog()
    with connected_client(service_url, log) as (pulsar, client):
        consumer = client.subscribe(
            topic,
            subscription,
            consumer_type=getattr(pulsar.ConsumerType, type_name),
            initial_position=getattr(pulsar.InitialPosition, position_name),
        )
        try:
            _receive(pulsar, consumer, number, timeout_s, output, log)
        except KeyboardInterrupt:
            pass  # the way to end a command that has no end
        finally:
            consumer.close()


def _receive(
    pulsar: Any,
    consumer: Any,
    number: int,
    timeout_s: float | None,
    output: MessageOutput,
    log: ClientLog,
) -> None:
    received, idle_ms = 0, 0
    while not number or received < number:
        try:
            message = consumer.receive(timeout_millis=_POLL_MILLIS)
        except pulsar.Timeout:
            idle_ms += _POLL_MILLIS
            sys.stderr.write(log.news())  # why nothing comes: the broker went away
            if timeout_s is not None and idle_ms >= timeout_s * 1000:
                if number:
                    raise CommandError(
                        f"{received} of {number} messages came; nothing more for {timeout_s:g} s"
                    ) from None
                return
            continue
        idle_ms = 0
        output.received(message)
        consumer.acknowledge(message)
        received += 1
