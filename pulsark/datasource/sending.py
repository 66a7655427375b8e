"""``delivery=at-least-once``: a task sends its rows through the broker, by Pulsar's own client."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from pulsark.datasource.admin_client import AdminClient
from pulsark.datasource.errors import DataSourceError, UnavailableError
from pulsark.datasource.outgoing import messages_of, topics_of
from pulsark.datasource.topics import topic_names
from pulsark.datasource.write_options import WriteOptions
from pulsark.wire.routing import partition_of


class Sender:
    """One task. ``columns``: by meaning, the name of a column."""

    def __init__(self, options: WriteOptions, columns: dict[str, str]) -> None:
        self._options = options
        self._columns = columns
        self._pulsar = _client_library()
        self._producers: dict[str, Any] = {}
        self._failure: Any = None

    def send(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send all rows; returns when the broker has stored them. ``UnavailableError``."""
        pulsar = self._pulsar
        client = pulsar.Client(
            self._options.service_url,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=max(int(self._options.poll_timeout_s), 1),
        )
        try:
            for batch in batches:
                self._send(client, batch)
            for producer in self._producers.values():
                producer.flush()
        except pulsar.PulsarException as error:
            raise self._unavailable(error) from None
        finally:
            client.close()
        if self._failure is not None:
            raise self._unavailable(self._failure)

    def _send(self, client: Any, rows: pa.RecordBatch) -> None:
        messages = messages_of(rows, self._columns)
        fixed = self._options.topic
        topics = (
            [fixed] * rows.num_rows
            if fixed is not None
            else topics_of(rows, self._columns).to_pylist()
        )
        if messages.column("key_base64").null_count < rows.num_rows:
            raise DataSourceError(
                "column 'key' is binary, which Pulsar's Python client cannot send; use "
                "delivery=exactly-once, or a text"
            )
        milliseconds = {
            name: messages.column(name).cast(pa.int64()).to_pylist()
            for name in ("event_time", "deliver_at_time")
        }
        columns = {
            name: messages.column(name).to_pylist()
            for name in ("key", "ordering_key", "value", "properties")
        }
        for row, topic in enumerate(topics):
            producer = self._producers.get(topic) or self._producer(client, topic)
            value = columns["value"][row]
            if value is None:
                raise DataSourceError(
                    "column 'value' is null in a row, which Pulsar's Python client cannot send; "
                    "use delivery=exactly-once"
                )
            ordering_key = columns["ordering_key"][row]
            event_us = milliseconds["event_time"][row]
            due_us = milliseconds["deliver_at_time"][row]
            producer.send_async(
                value,
                self._sent,
                properties={k: v or "" for k, v in columns["properties"][row] or ()} or None,
                partition_key=columns["key"][row],
                ordering_key=ordering_key.decode() if ordering_key is not None else None,
                event_timestamp=event_us // 1000 if event_us is not None else None,
                deliver_at=due_us // 1000 if due_us is not None else None,
            )

    def _producer(self, client: Any, topic: str) -> Any:
        pulsar, options = self._pulsar, self._options
        (name,) = topic_names([topic])
        admin = AdminClient(options.admin_url, options.poll_timeout_s, known=True)
        if options.create_topic:
            admin.create_topic(name, options.num_partitions)
        else:
            admin.partitions(name)  # the client would create it
        admin.close()
        self._producers[topic] = found = client.create_producer(
            str(name),
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_messages=options.batching_max_messages,
            batching_max_allowed_size_in_bytes=options.batching_max_bytes,
            compression_type=getattr(pulsar.CompressionType, _COMPRESSION[options.compression]),
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            message_router=self._router(),
            send_timeout_millis=int(options.poll_timeout_s * 1000),
        )
        return found

    def _router(self) -> Callable[[Any, int], int] | None:
        """What chooses partitions, unless the client does it the same way by itself."""
        scheme = self._options.hashing_scheme
        if scheme == "BoostHash":
            return None
        without_key = itertools.count()

        def route(message: Any, partitions: int) -> int:
            key = message.partition_key()
            return partition_of(key, partitions, scheme) if key else next(without_key) % partitions

        return route

    def _sent(self, result: Any, _: Any) -> None:
        if result != self._pulsar.Result.Ok and self._failure is None:
            self._failure = result

    def _unavailable(self, reason: object) -> UnavailableError:
        return UnavailableError(
            f"messages could not be sent to {self._options.service_url}: {reason}; is the broker "
            "running, and is option serviceUrl right?"
        )


_COMPRESSION = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}


def _client_library() -> Any:
    try:
        import pulsar
    except ImportError:
        raise DataSourceError(
            "option 'delivery' at-least-once needs Pulsar's Python client on the executors: "
            "pip install pulsar-client"
        ) from None
    return pulsar
