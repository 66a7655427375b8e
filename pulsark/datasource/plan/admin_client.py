"""What the driver asks of the broker's admin API: plans, topic lists, subscriptions.

One keep-alive connection and the standard library only: a streaming query asks every few
milliseconds, and the planning process of each query pays for every import.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from pulsark.datasource.options.errors import (
    ConflictError,
    DataSourceError,
    OptionError,
    TopicNotFoundError,
    TopicSchemaError,
    UnavailableError,
)
from pulsark.datasource.plan.plan import PartitionState
from pulsark.datasource.plan.table_files import PastTable, TableFiles
from pulsark.limits import PLANNED_TOPICS_MAX
from pulsark.schemas import key_value
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.wire.message_id import MessageId
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pulsark.datasource.plan.cursor_changes import SubscriptionChange

FIRST_CONTACT_SECONDS = 5.0
_REQUEST_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0
_AFTER_MAX = 400
_QUERIES = "/admin/v2/spark-queries"
_PARTITION_SUFFIX = re.compile(r"-partition-\d+$")


class AdminClient:
    """Not for several threads. Survives restarts of the broker for ``patience_s`` seconds.

    ``patience_s`` may be changed at any time. A broker that never answered gets
    ``FIRST_CONTACT_SECONDS``, because the address may be wrong, unless it is ``known``: somebody
    else of the same query had an answer from there.
    """

    def __init__(self, url: str, patience_s: float, *, known: bool = False) -> None:
        self._url = url
        self._parts = urlsplit(url)
        self.patience_s = patience_s
        self._connection: http.client.HTTPConnection | None = None
        self._answered = known

    def partitions(
        self, topic: TopicName, after: Sequence[int] = (), *, compacted: bool = False
    ) -> list[PartitionState]:
        """All partitions of a topic with their ledgers; ``TopicNotFoundError``.

        ``after`` has a ledger id for each partition, in order: older ledgers are left out.
        ``compacted``: also what compaction left of them.
        """
        # Too many for one request line: the others are listed whole.
        known = ",".join(map(str, after[:_AFTER_MAX]))
        query = [f"after={known}"] if any(ledger_id > 0 for ledger_id in after) else []
        query += ["compacted=true"] if compacted else []
        path = f"{_path(topic)}/segments"
        status, body = self._call("GET", f"{path}?{'&'.join(query)}" if query else path)
        if status == 404:
            raise TopicNotFoundError(f"topic {topic} does not exist at {self._url}")
        plan = self._expect(status, body, f"the plan of {topic}")
        return [
            PartitionState.from_json(str(topic.base), plan["flightUrl"], item)
            for item in sorted(plan["partitions"], key=lambda item: item["partition"])
        ]

    def plans(
        self, topics: Mapping[TopicName, Sequence[int]], *, compacted: bool = False
    ) -> list[PartitionState]:
        """``partitions`` of many topics; those that do not exist are left out."""
        names = list(topics)
        found = []
        for start in range(0, len(names), PLANNED_TOPICS_MAX):
            wanted = {
                str(name): list(topics[name]) for name in names[start : start + PLANNED_TOPICS_MAX]
            }
            asked = {"topics": wanted, "compacted": compacted}
            status, body = self._call("POST", "/admin/v2/spark-plans", asked)
            for plan in self._expect(status, body, f"the plan of {len(wanted)} topics")["topics"]:
                topic = str(TopicName.parse(plan["topic"]).base)
                found += [
                    PartitionState.from_json(topic, plan["flightUrl"], item)
                    for item in plan["partitions"]
                ]
        return found

    def table_files(self, topic: TopicName, after: Sequence[int] = ()) -> TableFiles:
        """The files of a topic's table, of the ledgers that ``partitions`` gives."""
        known = ",".join(map(str, after[:_AFTER_MAX]))
        query = f"?after={known}" if any(ledger_id > 0 for ledger_id in after) else ""
        status, body = self._call("GET", f"{_path(topic)}/tableFiles{query}")
        if status == 404:  # gone since, or an older broker
            return TableFiles((), {})
        found = self._expect(status, body, f"the table of {topic}")
        return TableFiles.from_json(found)

    def past_table(self, topic: TopicName, **at: int) -> PastTable:
        """A topic's table at a ``version`` or a ``timestamp`` (ms); ``TopicNotFoundError``, and
        ``OptionError`` if there is no such version."""
        ((how, wanted),) = at.items()
        status, body = self._call("GET", f"{_path(topic)}/table/past?{how}={wanted}")
        if status == 404:
            raise TopicNotFoundError(f"topic {topic} does not exist at {self._url}")
        if status == 412:
            raise OptionError(f"option '{how}AsOf': {topic}: {_reason(body)}")
        return PastTable.from_json(self._expect(status, body, f"the past of {topic}"))

    def count_messages(
        self,
        topic: str,
        after: MessageId,
        through: MessageId,
        limit: int,
        *,
        compacted: bool = False,
    ) -> tuple[int, MessageId]:
        """Messages of a partition behind ``after``, up to ``through`` and to ``limit``.

        Returns how many, and the last of them. It may be before both ends: ask again from there.
        ``compacted``: places are in a compacted ledger.
        """
        query = f"after={after}&through={through}&limit={limit}"
        query += "&compacted=true" if compacted else ""
        status, body = self._call("GET", f"{_path(TopicName.parse(topic))}/messageCount?{query}")
        found = self._expect(status, body, f"the number of messages of {topic} after {after}")
        last = found["last"]
        return found["messages"], MessageId.from_json(last)

    def schemas(self, topic: TopicName) -> dict[bytes, SchemaData]:
        """The schemas of a topic by the version that messages carry, the oldest first."""
        path = f"/admin/v2/schemas/{topic.namespace_name}/{quote(topic.local, safe='')}/schemas"
        status, body = self._call("GET", path)
        if status == 404:
            return {}
        answer = self._expect(status, body, f"the schemas of {topic}")
        found = sorted(answer["getSchemaResponses"], key=lambda each: each["version"])
        return {each["version"].to_bytes(8, "big"): _schema(each) for each in found}

    def register_schema(self, topic: TopicName, schema: SchemaData) -> bytes:
        """The version of a schema, which is added as if a producer brought it.

        ``TopicSchemaError`` if the topic does not take it.
        """
        path = f"/admin/v2/schemas/{topic.namespace_name}/{quote(topic.local, safe='')}"
        body = {
            "type": schema.type.name,
            "schema": schema.data.decode(),
            "properties": dict(schema.properties),
        }
        status, answer = self._call("POST", f"{path}/producerSchema", body)
        if status in (409, 422):
            raise TopicSchemaError(
                f"topic {topic} does not take the schema of these columns: {_reason(answer)}. Cast "
                "or rename columns so that they fit, or change the namespace's "
                "schemaCompatibilityStrategy"
            )
        found = self._expect(status, answer, f"the schema of {topic}")
        return bytes.fromhex(found["schemaVersion"])

    def first_since(self, topic: str, ms: int, *, compacted: bool = False) -> MessageId:
        """The first message of a partition published at a time (epoch) or later.

        The place behind the last message if there is none. ``compacted``: of what stayed.
        """
        path = f"{_path(TopicName.parse(topic))}/messageid/{ms}"
        status, body = self._call("GET", f"{path}?compacted=true" if compacted else path)
        found = self._expect(status, body, f"the first message of {topic} since {ms}")
        return MessageId.from_json(found)

    def view(self, topic: TopicName, view: str, at_ms: int | None = None) -> list[dict[str, Any]]:
        """The rows of a view of one topic, now or at a past time; ``TopicNotFoundError``."""
        query = "" if at_ms is None else f"?at={at_ms}"
        status, body = self._call("GET", f"{_path(topic)}/views/{view}{query}")
        if status == 404:
            raise TopicNotFoundError(f"topic {topic} does not exist at {self._url}")
        rows: list[dict[str, Any]] = self._expect(status, body, f"{view} of {topic}")
        return rows

    def table(self, topic: TopicName) -> dict[str, Any]:
        """Where a topic's table is; ``TopicNotFoundError`` if there is none yet, too."""
        status, body = self._call("GET", f"{_path(topic)}/table")
        if status == 404:
            raise TopicNotFoundError(f"{topic} at {self._url}: {_reason(body)}")
        found: dict[str, Any] = self._expect(status, body, f"the table of {topic}")
        return found

    def claim(
        self, query: str, client: str, subscription: str | None, topics: Sequence[str]
    ) -> str | None:
        """Say what a query reads, and take its subscription; who has it, if somebody else does."""
        body = {"client": client, "subscription": subscription, "topics": list(topics)}
        status, answer = self._call("PUT", f"{_QUERIES}/{query}", body)
        if status == 409:
            return _reason(answer)
        self._expect(status, answer, f"subscription {subscription}")
        return None

    def renew(self, query: str, read: Mapping[str, MessageId] | None = None) -> bool:
        """Keep what a query has claimed, and say how far it has read; False if the broker knows
        of nothing."""
        return self._of_query("POST", query, "", read or {}) is not None

    def create_subscriptions(self, query: str, first: Mapping[str, MessageId]) -> list[str] | None:
        """Make the subscription of a query where it is missing, to receive these messages next.

        Returns the partitions that do not exist; ``None`` if the broker knows of no such query.
        """
        return self._of_query("PUT", query, "/subscriptions", first)

    def acknowledge(self, query: str, through: Mapping[str, MessageId]) -> list[str] | None:
        """Acknowledge everything up to these entries for a query.

        Returns the partitions without its subscription; ``None`` as above.
        """
        return self._of_query("POST", query, "/acknowledge", through)

    def report(self, query: str, progress: Mapping[str, Any]) -> bool:
        """What Spark says of the last batch; False as above."""
        status, answer = self._call("PUT", f"{_QUERIES}/{query}/progress", dict(progress))
        if status != 404:
            self._expect(status, answer, f"query {query}")
        return status != 404

    def _of_query(
        self, method: str, query: str, path: str, places: Mapping[str, MessageId]
    ) -> list[str] | None:
        """One request for every ``PLANNED_TOPICS_MAX`` partitions, and at least one."""
        missing: list[str] = []
        items = list(places.items())
        for start in range(0, len(items) or 1, PLANNED_TOPICS_MAX):
            some = items[start : start + PLANNED_TOPICS_MAX]
            positions = {name: place.position.to_json() for name, place in some}
            url = f"{_QUERIES}/{query}{path}"
            status, answer = self._call(method, url, {"positions": positions})
            if status == 404:
                return None
            missing += (self._expect(status, answer, f"query {query}") or {}).get("missing", ())
        return missing

    def release(self, query: str) -> None:
        """Give back all that a query has claimed."""
        status, answer = self._call("DELETE", f"{_QUERIES}/{query}")
        if status != 404:
            self._expect(status, answer, f"query {query}")

    def topics(self, namespace: str) -> list[str]:
        """Full names of all topics of ``tenant/namespace``, without partitions, sorted."""
        base = f"/admin/v2/persistent/{namespace}"
        status, body = self._call("GET", base)
        if status == 404:
            raise TopicNotFoundError(f"namespace {namespace} does not exist at {self._url}")
        plain = self._expect(status, body, f"the topics of {namespace}")
        status, body = self._call("GET", f"{base}/partitioned")
        partitioned = self._expect(status, body, f"the partitioned topics of {namespace}")
        parents = set(partitioned)
        single = {name for name in plain if _PARTITION_SUFFIX.sub("", name) not in parents}
        return sorted(parents | single)

    def seal_plan(
        self, topics: Sequence[str], runner: str, *, everything: bool, range_bytes: int
    ) -> dict[str, Any]:
        """What is due to be sealed, for a job; see ``admin.spark.sealing``."""
        body = {
            "topics": list(topics),
            "runner": runner,
            "everything": everything,
            "rangeBytes": range_bytes,
        }
        status, answer = self._call("POST", "/admin/v2/sealing/plan", body)
        plan: dict[str, Any] = self._expect(status, answer, "the plan of sealing")
        return plan

    def sealed_copies(self, topics: Sequence[str], after: str) -> dict[str, Any]:
        """On which storage roots sealed ledgers are, a page; see ``admin.spark.sealing``."""
        given = [("topic", name) for name in topics] + [("after", after)]
        status, answer = self._call("GET", f"/admin/v2/sealing/copies?{urlencode(given)}")
        page: dict[str, Any] = self._expect(status, answer, "the copies of sealed ledgers")
        return page

    def recovered(self, root: str) -> int:
        """A storage root has all its files again; the number of its tables."""
        status, answer = self._call("POST", "/admin/v2/sealing/recovered", {"root": root})
        return int(self._expect(status, answer, f"storage root {root}")["tables"])

    def place(self, topic: str, directories: Sequence[str]) -> None:
        """A table is in other directories from now on, which have all its files."""
        path = f"{_path(TopicName.parse(topic))}/table/directories"
        status, answer = self._call("POST", path, {"directories": list(directories)})
        self._expect(status, answer, f"the table of {topic}")

    def attach(
        self, topic: str, table_id: str, files: Sequence[dict[str, Any]], value: Any = None
    ) -> int:
        """Make files part of a topic; the number of the attach. ``ConflictError``: plan anew.

        ``value`` is the type that their values have, from the plan.
        """
        path = f"{_path(TopicName.parse(topic))}/attach"
        body = {"tableId": table_id, "files": list(files), "value": value}
        status, answer = self._call("POST", path, body)
        if status == 409:
            raise ConflictError(_reason(answer))
        return int(self._expect(status, answer, f"files of {topic}")["attach"])

    def change_subscription(self, change: SubscriptionChange) -> None:
        """Seek, acknowledge, create, delete or restore; what is so already is no error."""
        base = _subscription_path(change.topic, change.subscription)
        status, body = self._call(change.method, base + change.path, change.body)
        if status not in change.fine:
            self._expect(
                status,
                body,
                f"{change.what} of subscription {change.subscription} of {change.topic}",
            )

    def call(self, method: str, path: str, body: Any = None, *, what: str) -> Any:
        """Any other call, which may be made twice; ``path`` from the root. ``DataSourceError``."""
        status, answer = self._call(method, path, body)
        return self._expect(status, answer, what)

    @staticmethod
    def path_of(topic: TopicName) -> str:
        """The path of a topic."""
        return _path(topic)

    def create_topic(self, topic: TopicName, partitions: int) -> None:
        """Create a topic, without partitions if that is 0; fine if it is there."""
        path = f"{_path(topic)}/partitions" if partitions else _path(topic)
        status, body = self._call("PUT", path, partitions or None)
        if status != 409:
            self._expect(status, body, f"topic {topic}")

    def staging(self, topic: TopicName, *, with_schema: bool) -> dict[str, Any]:
        """Where files for a bulk publish are written; ``TopicNotFoundError``.

        ``with_schema``: they will have a version of the topic's schema.
        """
        query = "?schema=true" if with_schema else ""
        status, body = self._call("GET", f"{_path(topic)}/bulkPublish{query}")
        if status == 404:
            raise TopicNotFoundError(
                f"topic {topic} does not exist at {self._url}; create it, or set option "
                "createTopic to true"
            )
        if status == 409:
            raise DataSourceError(
                f"topic {topic} has a schema, and takes nothing without one: set option "
                f"valueFormat to avro or json ({_reason(body)})"
            )
        found: dict[str, Any] = self._expect(status, body, f"a write to {topic}")
        return found

    def is_published(self, topic: TopicName, ident: str, number: int) -> bool:
        """Whether a bulk publish was made, or a later one of the same origin."""
        path = f"{_path(topic)}/bulkPublish/{quote(ident, safe='')}/{number}"
        status, body = self._call("GET", path)
        return bool(self._expect(status, body, f"write {ident} to {topic}")["published"])

    def publish(self, topic: TopicName, ident: str, number: int, staged: dict[str, Any]) -> bool:
        """Make staged files part of a topic; false if that was done before."""
        path = f"{_path(topic)}/bulkPublish/{quote(ident, safe='')}/{number}"
        status, body = self._call("PUT", path, staged)
        return bool(self._expect(status, body, f"the write to {topic}")["published"])

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _expect(self, status: int, body: bytes, what: str) -> Any:
        if 200 <= status < 300:
            return json.loads(body) if body else None
        raise DataSourceError(f"{what}: {self._url} answered {status}: {_reason(body)}")

    def _call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        patience = self.patience_s if self._answered else FIRST_CONTACT_SECONDS
        deadline = time.monotonic() + min(patience, self.patience_s)
        pause = 0.0  # a kept-alive connection that the broker has dropped is retried at once
        while True:
            try:
                status, answer = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                problem = str(error) or type(error).__name__
            else:
                if status < 500:
                    self._answered = True
                    return status, answer
                problem = f"status {status}: {_reason(answer)}"
            if time.monotonic() + pause > deadline:
                raise UnavailableError(
                    f"no answer from the admin API at {self._url} ({problem}); is the broker "
                    "running, and are the options serviceUrl and adminUrl right?"
                )
            time.sleep(pause)
            pause = min(max(pause * 2, _PAUSE_SECONDS), _PAUSE_SECONDS_MAX)

    def _once(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        if self._connection is None:
            kind = (
                http.client.HTTPSConnection
                if self._parts.scheme == "https"
                else http.client.HTTPConnection
            )
            self._connection = kind(
                self._parts.hostname or "", self._parts.port, timeout=_REQUEST_TIMEOUT_SECONDS
            )
        headers = {"Content-Type": "application/json"} if body is not None else {}
        text = json.dumps(body) if body is not None else None
        self._connection.request(method, self._parts.path + path, text, headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def _schema(stored: dict[str, Any]) -> SchemaData:
    kind, text = SchemaType[stored["type"]], stored["data"]
    data = key_value.from_text(text) if kind is SchemaType.KEY_VALUE else text.encode()
    return SchemaData(kind, data, stored["properties"])


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{topic.domain}/{topic.namespace_name}/{quote(topic.local, safe='')}"


def _subscription_path(topic: str, subscription: str) -> str:
    """Subscriptions are encoded twice, as Pulsar's own clients do and its brokers expect."""
    twice = quote(quote(subscription, safe=""), safe="")
    return f"{_path(TopicName.parse(topic))}/subscription/{twice}"


def _reason(body: bytes) -> str:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("reason"), str):
        return str(answer["reason"])
    return body[:200].decode("utf-8", "replace")
