"""Paths of the admin API below ``/admin/v2``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from pulsark.wire.topic_name import TopicName


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")


def topic_path(topic: TopicName) -> str:
    """The path of a topic or partition."""
    return f"/{topic.domain}/{topic.namespace_name}/{segment(topic.local)}"


def subscription_path(topic: TopicName, subscription: str) -> str:
    """Subscriptions are encoded twice, as Pulsar's own clients do and its brokers expect."""
    return f"{topic_path(topic)}/subscription/{segment(segment(subscription))}"


def schemas_path(topic: TopicName) -> str:
    """The path of a topic's schemas, which its partitions share."""
    return f"/schemas/{topic.namespace_name}/{segment(topic.base.local)}"
