"""Topics: their partitions and ledgers, their tables, and the views of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pulsark.admin_client.paths import segment, topic_path
from pulsark.datasource.admin.partitions import PartitionState
from pulsark.datasource.admin.table_files import NO_FILES, PastTable, TableFiles
from pulsark.datasource.options.errors import NotSealedError, OptionError, TopicNotFoundError
from pulsark.limits import PLANNED_TOPICS_MAX
from pulsark.wire.message_id import MessageId
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pulsark.admin_client.client import AdminClient, Answer

_AFTER_MAX = 400
"""Ledger ids in one request line; the partitions behind them are listed whole."""

_NOTHING_SEALED = "is sealed yet"
"""What the broker says of a topic without a table; it also answers 404 for missing topics."""

_PARTITION_SUFFIX = re.compile(r"-partition-\d+$")


@dataclass(frozen=True, slots=True)
class TopicCalls:
    """Persistent topics of the broker."""

    _client: AdminClient

    def names(self, namespace: str) -> list[str]:
        """Full names of all topics of ``tenant/namespace``, without partitions, sorted."""
        base = f"/persistent/{namespace}"
        answer = self._client.request("GET", base)
        if answer.status == 404:
            raise TopicNotFoundError(f"namespace {namespace} does not exist at {self._client.url}")
        plain = self._client.value_of(answer, f"the topics of {namespace}")
        what = f"the partitioned topics of {namespace}"
        parents = set(self._client.call("GET", f"{base}/partitioned", what=what))
        single = {name for name in plain if _PARTITION_SUFFIX.sub("", name) not in parents}
        return sorted(parents | single)

    def create(self, topic: TopicName, partitions: int) -> None:
        """Create a topic, without partitions if that is 0; fine if it is there."""
        path = f"{topic_path(topic)}/partitions" if partitions else topic_path(topic)
        answer = self._client.request("PUT", path, partitions or None)
        if answer.status != 409:
            self._client.value_of(answer, f"topic {topic}")

    def partitions(
        self, topic: TopicName, after: Sequence[int] = (), *, compacted: bool = False
    ) -> list[PartitionState]:
        """All partitions of a topic with their ledgers; ``TopicNotFoundError``.

        ``after`` has a ledger id for each partition, in order: older ledgers are left out.
        ``compacted``: also what compaction left of them.
        """
        path = f"{topic_path(topic)}/segments{_query(after, compacted=compacted)}"
        plan = self._existing(topic, self._client.request("GET", path), f"the plan of {topic}")
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
            some = names[start : start + PLANNED_TOPICS_MAX]
            asked = {
                "topics": {str(name): list(topics[name]) for name in some},
                "compacted": compacted,
            }
            what = f"the plan of {len(some)} topics"
            for plan in self._client.call("POST", "/spark-plans", asked, what=what)["topics"]:
                topic = str(TopicName.parse(plan["topic"]).base)
                found += [
                    PartitionState.from_json(topic, plan["flightUrl"], item)
                    for item in plan["partitions"]
                ]
        return found

    def first_since(self, topic: str, ms: int, *, compacted: bool = False) -> MessageId:
        """The first message of a partition published at a time (epoch) or later.

        The place behind the last message if there is none. ``compacted``: of what stayed.
        """
        query = _query(compacted=compacted)
        path = f"{topic_path(TopicName.parse(topic))}/messageid/{ms}{query}"
        what = f"the first message of {topic} since {ms}"
        return MessageId.from_json(self._client.call("GET", path, what=what))

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
        path = f"{topic_path(TopicName.parse(topic))}/messageCount?{query}"
        what = f"the number of messages of {topic} after {after}"
        found = self._client.call("GET", path, what=what)
        return found["messages"], MessageId.from_json(found["last"])

    def end_of_deleted(self, name: str, topic_id: str) -> MessageId | None:
        """Return the last entry of a deleted partition (-1:-1: it had none), or None if the broker
        does not know it."""
        path = f"{topic_path(TopicName.parse(name))}/deleted/{segment(topic_id)}"
        answer = self._client.request("GET", path)
        if answer.status == 404:
            return None
        return MessageId.from_json(self._client.value_of(answer, f"the end of {name}")["last"])

    def table(self, topic: TopicName) -> dict[str, Any]:
        """Return where a topic's table is. Raises ``TopicNotFoundError``, and ``NotSealedError``
        if it has no table yet."""
        answer = self._client.request("GET", f"{topic_path(topic)}/table")
        if answer.status == 404:
            if _NOTHING_SEALED in answer.reason:
                raise NotSealedError(
                    f"topic {topic} has no table yet, because nothing of it is sealed. Run "
                    f"'pulsark topics seal {topic}', or wait as long as its sealing policy says; "
                    'format("pulsark") reads messages that are not sealed, too'
                )
            raise TopicNotFoundError(f"{topic} at {self._client.url}: {answer.reason}")
        found: dict[str, Any] = self._client.value_of(answer, f"the table of {topic}")
        return found

    def table_files(self, topic: TopicName, after: Sequence[int] = ()) -> TableFiles:
        """The files of a topic's table, of the ledgers that ``partitions`` gives."""
        answer = self._client.request("GET", f"{topic_path(topic)}/tableFiles{_query(after)}")
        if answer.status == 404:  # gone since, or an older broker
            return NO_FILES
        return TableFiles.from_json(self._client.value_of(answer, f"the table of {topic}"))

    def past_table(self, topic: TopicName, **at: int) -> PastTable:
        """A topic's table at a ``version`` or a ``timestamp`` (ms); ``TopicNotFoundError``, and
        ``OptionError`` if there is no such version."""
        ((how, wanted),) = at.items()
        answer = self._client.request("GET", f"{topic_path(topic)}/table/past?{how}={wanted}")
        if answer.status == 412:
            raise OptionError(f"option '{how}AsOf': {topic}: {answer.reason}")
        return PastTable.from_json(self._existing(topic, answer, f"the past of {topic}"))

    def view(self, topic: TopicName, view: str, at_ms: int | None = None) -> list[dict[str, Any]]:
        """The rows of a view of one topic, now or at a past time; ``TopicNotFoundError``."""
        given = {"masks": "true"} if view == "cursors" else {}
        if at_ms is not None:
            given["at"] = str(at_ms)
        answer = self._view(topic, view, given)
        if answer.status != 413 or view != "cursors" or at_ms is not None:
            rows: list[dict[str, Any]] = self._existing(topic, answer, f"{view} of {topic}")
            return rows
        # All subscriptions together have more ranges than one answer may have.
        what = f"the subscriptions of {topic}"
        names = self._client.call("GET", f"{topic_path(topic)}/subscriptions", what=what)
        answers = (self._view(topic, view, given | {"subscription": name}) for name in names)
        each = (self._existing(topic, answer, f"{view} of {topic}") for answer in answers)
        return [row for rows in each for row in rows]

    def _view(self, topic: TopicName, view: str, given: Mapping[str, str]) -> Answer:
        query = f"?{urlencode(given)}" if given else ""
        return self._client.request("GET", f"{topic_path(topic)}/views/{view}{query}")

    def _existing(self, topic: TopicName, answer: Answer, what: str) -> Any:
        if answer.status == 404:
            raise TopicNotFoundError(f"topic {topic} does not exist at {self._client.url}")
        return self._client.value_of(answer, what)


def _query(after: Sequence[int] = (), *, compacted: bool = False) -> str:
    given = []
    if any(ledger_id > 0 for ledger_id in after):
        given.append(f"after={','.join(map(str, after[:_AFTER_MAX]))}")
    if compacted:
        given.append("compacted=true")
    return f"?{'&'.join(given)}" if given else ""
