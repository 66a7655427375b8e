"""Which broker serves a topic: the interface that calls between brokers need."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pulsark.wire.topic_name import TopicName


class Peer(NamedTuple):
    """A live broker."""

    broker_id: str
    web_url: str
    """Its admin API; the TLS port if it has no other."""
    instance: str = ""
    """The id of its process. A call that is signed for one process is refused by the next."""


class Whereabouts(Protocol):
    """One broker's knowledge of the others. Only ``find`` may have a bundle claimed."""

    @property
    def broker_id(self) -> str:
        """The id of this broker."""

    @property
    def instance(self) -> str:
        """The id of this process."""

    async def where(self, topic: TopicName) -> Peer | None:
        """The other broker that serves a topic or partition; ``None`` if there is none."""

    async def find(self, topic: TopicName) -> Peer | None:
        """The same, but if no broker serves the topic, one is chosen to."""

    async def where_bundle(self, bundle: str) -> Peer | None:
        """Like ``where``, for a bundle ``tenant/namespace/range``."""

    async def others(self) -> list[Peer]:
        """All live brokers but this one."""

    async def leader(self) -> Peer | None:
        """The leader, which may be this broker; ``None`` if there is none now."""
