"""Bulk publishes: files that tasks have written become part of a topic at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.admin_client.paths import segment, topic_path
from pulsark.datasource.options.errors import DataSourceError, TopicNotFoundError

if TYPE_CHECKING:
    from pulsark.admin_client.client import AdminClient
    from pulsark.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class BulkPublishCalls:
    """A write of Spark, by the id of its origin and its number there."""

    _client: AdminClient

    def staging(self, topic: TopicName, *, with_schema: bool) -> dict[str, Any]:
        """Where files for a bulk publish are written; ``TopicNotFoundError``.

        ``with_schema``: they will have a version of the topic's schema.
        """
        query = "?schema=true" if with_schema else ""
        answer = self._client.request("GET", f"{topic_path(topic)}/bulkPublish{query}")
        if answer.status == 404:
            raise TopicNotFoundError(
                f"topic {topic} does not exist at {self._client.url}; create it, or set option "
                "createTopic to true"
            )
        if answer.status == 409:
            raise DataSourceError(
                f"topic {topic} has a schema, and takes nothing without one: set option "
                f"valueFormat to avro or json ({answer.reason})"
            )
        found: dict[str, Any] = self._client.value_of(answer, f"a write to {topic}")
        return found

    def is_published(self, topic: TopicName, ident: str, number: int) -> bool:
        """Whether a bulk publish was made, or a later one of the same origin."""
        path = _path(topic, ident, number)
        answer = self._client.call("GET", path, what=f"write {ident} to {topic}")
        return bool(answer["published"])

    def publish(self, topic: TopicName, ident: str, number: int, staged: dict[str, Any]) -> bool:
        """Make staged files part of a topic; false if that was done before."""
        path = _path(topic, ident, number)
        answer = self._client.call("PUT", path, staged, what=f"the write to {topic}")
        return bool(answer["published"])


def _path(topic: TopicName, ident: str, number: int) -> str:
    return f"{topic_path(topic)}/bulkPublish/{segment(ident)}/{number}"
