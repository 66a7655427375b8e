"""``delivery=at-least-once``: a task sends its rows through the broker, by Pulsar's own client."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pulsark.datasource.admin.client import admin_of
from pulsark.datasource.options.errors import DataSourceError, UnavailableError
from pulsark.datasource.plan.topics import topic_names
from pulsark.datasource.write.outgoing import by_topic, messages_of, partitions_of
from pulsark.datasource.write.routing import named_places
from pulsark.wire.routing import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.datasource.write.typed_values import TypedValues, ValuesOf
    from pulsark.datasource.write.write_options import WriteOptions


class RowSender:
    """One task. ``columns``: by meaning, the name of a column."""

    def __init__(self, options: WriteOptions, columns: dict[str, str], values_of: ValuesOf) -> None:
        self._options = options
        self._columns = columns
        self._values_of = values_of
        self._pulsar = _client_library()
        self._topics: dict[str, _TopicSender] = {}

    def send(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send all rows; returns when the broker has stored them. ``UnavailableError``."""
        pulsar = self._pulsar
        client = pulsar.Client(
            self._options.service_url,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=max(int(self._options.poll_timeout_s), 1),
            **self._options.credentials.for_client(pulsar),
        )
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                for topic, rows in by_topic(batch, self._columns, self._options.topic):
                    if topic not in self._topics:
                        self._topics[topic] = self._open(client, topic)
                    self._topics[topic].send(rows)
            for sender in self._topics.values():
                sender.flush()
        except pulsar.PulsarException as error:
            raise self._unavailable(error) from None
        finally:
            client.close()
        for sender in self._topics.values():
            if sender.failure is not None:
                raise self._unavailable(sender.failure)

    def _open(self, client: Any, topic: str) -> _TopicSender:
        options = self._options
        (name,) = topic_names([topic])
        with admin_of(options, known=True) as admin:
            if options.create_topic:
                admin.topics.create(name, options.num_partitions)
            # The client would create a topic that is not there.
            found = admin.topics.partitions(name)
            values = self._values_of(admin, name)
        count = 0 if found[0].partition < 0 else len(found)
        return _TopicSender(client, str(name), count, options, self._columns, values)

    def _unavailable(self, reason: object) -> DataSourceError:
        if "MessageTooBig" in str(reason):
            return DataSourceError(
                "a row makes a message that is larger than the broker's maxMessageSize: make the "
                "value smaller, or raise maxMessageSize"
            )
        return UnavailableError(
            f"messages could not be sent to {self._options.service_url}: {reason}; is the broker "
            "running, and is option serviceUrl right?"
        )


class _TopicSender:
    """Sends to one topic; ``partitions`` are 0 if it has none."""

    def __init__(
        self,
        client: Any,
        topic: str,
        partitions: int,
        options: WriteOptions,
        columns: dict[str, str],
        values: TypedValues | None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._columns = columns
        self._values = values
        self.failure: Any = None
        """What the broker said of the first message that it did not take."""
        self._named = -1
        """The partition that the row names which is being sent."""
        self._pulsar = pulsar = _client_library()
        schema = _schema(values) if values is not None else pulsar.schema.BytesSchema()
        self._producer = client.create_producer(
            topic,
            schema=schema,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_messages=options.batching_max_messages,
            batching_max_allowed_size_in_bytes=options.batching_max_bytes,
            compression_type=getattr(pulsar.CompressionType, _COMPRESSION[options.compression]),
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            message_router=self._router(options.hashing_scheme),
            send_timeout_millis=int(options.poll_timeout_s * 1000),
        )

    def _router(self, scheme: str) -> Callable[[Any, int], int] | None:
        """The function that chooses partitions; ``None`` if the client chooses the same way."""
        if scheme == "BoostHash" and "partition" not in self._columns:
            return None
        without_key = itertools.count()

        def route(message: Any, partitions: int) -> int:
            # The client asks while the message is handed over, in the same thread.
            if self._named >= 0:
                return self._named
            key = message.partition_key()
            return partition_of(key, partitions, scheme) if key else next(without_key) % partitions

        return route

    def flush(self) -> None:
        """Wait until the broker has answered."""
        self._producer.flush()

    def send(self, rows: pa.RecordBatch) -> None:
        """Hand rows over to the client."""
        payloads = None
        if self._values is not None:
            payloads = self._values.payloads(self._values.of(rows))
        messages = messages_of(rows, self._columns, payloads)
        if messages.column("key_base64").null_count < rows.num_rows:
            raise DataSourceError(
                "column 'key' is binary, which Pulsar's Python client cannot send; use "
                "delivery=exactly-once, or a text"
            )
        if messages.column("value").null_count:
            raise DataSourceError(
                "column 'value' is null in a row, which Pulsar's Python client cannot send; "
                "use delivery=exactly-once"
            )
        named = named_places(partitions_of(rows, self._columns), self._partitions, self._topic)
        places = named.tolist() if named is not None else [-1] * rows.num_rows
        milliseconds = {
            name: messages.column(name).cast(pa.int64()).to_pylist()
            for name in ("event_time", "deliver_at_time")
        }
        columns = {
            name: messages.column(name).to_pylist()
            for name in ("key", "ordering_key", "value", "properties")
        }
        for row, self._named in enumerate(places):
            ordering_key = columns["ordering_key"][row]
            event_us = milliseconds["event_time"][row]
            due_us = milliseconds["deliver_at_time"][row]
            self._producer.send_async(
                columns["value"][row],
                self._sent,
                properties={k: v or "" for k, v in columns["properties"][row] or ()} or None,
                partition_key=columns["key"][row],
                ordering_key=ordering_key.decode() if ordering_key is not None else None,
                event_timestamp=event_us // 1000 if event_us is not None else None,
                deliver_at=due_us // 1000 if due_us is not None else None,
            )

    def _sent(self, result: Any, _: Any) -> None:
        if result != self._pulsar.Result.Ok and self.failure is None:
            self.failure = result


_COMPRESSION = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}


def _schema(values: TypedValues) -> Any:
    """A schema of the client whose values are payloads already."""
    import _pulsar  # type: ignore[import-not-found]
    from pulsar.schema import BytesSchema, Schema

    class Encoded(BytesSchema):  # type: ignore[misc]
        def __init__(self) -> None:
            kind = values.schema.type.name
            definition = json.loads(values.schema.data)
            Schema.__init__(self, bytes, getattr(_pulsar.SchemaType, kind), definition, kind)

    return Encoded()


def _client_library() -> Any:
    try:
        import pulsar
        import pulsar.schema
    except ImportError:
        raise DataSourceError(
            "option 'delivery' at-least-once needs Pulsar's Python client on the executors: "
            "pip install pulsar-client"
        ) from None
    return pulsar
