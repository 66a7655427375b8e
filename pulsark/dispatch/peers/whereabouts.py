"""Who serves what, as far as the calls between brokers need to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from pulsark.wire.topic_name import TopicName


class Peer(NamedTuple):
    """A live broker."""

    broker_id: str
    web_url: str
    """Its own admin API; that over TLS where it has no other."""
    instance: str = ""
    """Of its process alone: what is signed for one is refused by the next."""


class Whereabouts(Protocol):
    """What one broker knows of the others. Only ``find`` claims anything."""

    @property
    def broker_id(self) -> str:
        """This broker."""

    @property
    def instance(self) -> str:
        """Its process."""

    async def where(self, topic: TopicName) -> Peer | None:
        """Who serves a topic, which has no partitions; ``None``: this broker, or nobody."""

    async def find(self, topic: TopicName) -> Peer | None:
        """The same; if nobody does, somebody is chosen for it."""

    async def where_bundle(self, bundle: str) -> Peer | None:
        """The same as ``where`` of a bundle, ``tenant/namespace/range``."""

    async def others(self) -> list[Peer]:
        """All live brokers but this one."""

    async def leader(self) -> Peer | None:
        """The broker that gives bundles to brokers, this one too; ``None`` if there is none now."""
