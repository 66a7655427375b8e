"""What a role may do no more, its clients stop doing: their producers and consumers are closed.

Rights are asked for when a producer or a consumer is created, and again here, when what a tenant or
a namespace grants has changed. A client that is told so creates anew, and is refused then.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import ClientError, CorruptMetadataError, PulsarkError, ServerError
from pulsark.metadata.paths import POLICIES, policies_at
from pulsark.security.decisions import Target
from pulsark.security.limits import REVISITED_PER_TURN_MAX, REVOKED_AGAIN_SECONDS
from pulsark.security.logged_roles import logged_role
from pulsark.security.operations import NamespaceOperation, TopicOperation
from pulsark.tasks import unattended
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.connection.connection import Connection
    from pulsark.dispatch.connection.scalable_client import ScalableClient
    from pulsark.security.authorization import AuthorizationProvider
    from pulsark.security.operations import Operation

log = logging.getLogger(__name__)


class _Held(NamedTuple):
    """Something that a client has, what it needs for that, and how it is taken away."""

    operation: Operation
    target: Target
    take: Callable[[], None]


EVERYTHING = ""
"""Among names of tenants and namespaces: all of them."""


class Revocation:
    """Follows the metadata store, for the clients of one broker."""

    def __init__(self, broker: Broker, provider: AuthorizationProvider) -> None:
        self._broker = broker
        self._provider = provider
        self._changed: set[str] = set()
        """Tenants and namespaces."""
        self._again: dict[str, asyncio.TimerHandle] = {}
        """What is looked at once more: what was granted before may have been in creation."""
        self._end_watch: Callable[[], None] | None = None
        self._visit: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow it, after the provider does: that decides by what is new."""
        self._end_watch = self._broker.metadata.watch(
            POLICIES, self._on_change, lambda: self._look_at(EVERYTHING)
        )

    def close(self) -> None:
        """Follow it no longer."""
        if self._end_watch is not None:
            self._end_watch()
        if self._visit is not None:
            self._visit.cancel()
        for timer in self._again.values():
            timer.cancel()

    def _on_change(self, path: str) -> None:
        name = policies_at(path)
        self._look_at(name)
        self._look_later(name)

    def _look_later(self, name: str) -> None:
        if name not in self._again:
            later = asyncio.get_running_loop().call_later
            self._again[name] = later(REVOKED_AGAIN_SECONDS, self._look_again, name)

    def _look_again(self, name: str) -> None:
        del self._again[name]
        self._look_at(name)

    def _look_at(self, name: str) -> None:
        self._changed.add(name)
        if self._visit is None or self._visit.done():
            self._visit = unattended(self._visit_all(), "looking at clients whose grants changed")

    async def _visit_all(self) -> None:
        while self._changed:
            changed, self._changed = self._changed, set()
            try:
                async for connection, held in in_turns(self._held(changed), REVISITED_PER_TURN_MAX):
                    if held is not None and not connection.is_closed:
                        await self._ask(connection, held)
            except PulsarkError as error:
                log.warning(
                    "cannot read grants, so clients keep their producers and consumers: %s", error
                )
                for name in changed:
                    self._look_later(name)

    def _held(self, changed: set[str]) -> Iterator[tuple[Connection, _Held | None]]:
        """What clients have in some namespaces; ``None`` where there is nothing to ask."""
        connections = cast("list[Connection]", list(self._broker.connections))
        for connection in connections:
            for held in _held_by(connection):
                namespace = held.target.namespace
                is_meant = (
                    EVERYTHING in changed or namespace in changed or held.target.tenant in changed
                )
                yield connection, held if is_meant else None

    async def _ask(self, connection: Connection, held: _Held) -> None:
        operation, target, take = held
        decision = self._provider.decided(connection.principal, operation, target)
        if decision is None:
            try:
                decision = await self._provider.decision(connection.principal, operation, target)
            except CorruptMetadataError as error:  # which keeps nobody else's rights
                log.warning(
                    "%s: clients keep their producers and consumers: %s", target.namespace, error
                )
                return
        if not decision.granted and not connection.is_closed:
            how = self._broker.settings.authenticationRoleLoggingAnonymizer
            role = logged_role(connection.principal, how)
            log.info(
                "%s: role %s lost its permission for %s: %s",
                connection.address,
                role,
                operation,
                target,
            )
            audit = self._broker.audit
            if audit is not None:
                from pulsark.security.audit.events import Call, Judged  # where there is an audit

                judged = Judged(operation, target, decision)
                audit.call(connection.origin, connection.principal, Call("REVOKED"), judged)
            take()


def _held_by(connection: Connection) -> Iterator[_Held]:
    """All that a client has at this moment."""
    client, opened = connection.client, connection.opened
    producers = [*opened.producers.values(), *opened.waiting_producers.values()]
    for producer in producers:
        target = Target.of_topic(producer.topic.name)
        yield _Held(TopicOperation.PRODUCE, target, partial(client.close_producer, producer))
    for consumer in list(opened.consumers.values()):
        subscription = consumer.subscription
        target = Target.of_topic(subscription.topic.name, subscription.name)
        yield _Held(TopicOperation.CONSUME, target, partial(client.close_consumer, consumer))
    for watcher_id, watcher in list(opened.watchers.items()):
        yield _Held(
            NamespaceOperation.GET_TOPICS,
            Target.of_namespace(watcher.namespace),
            partial(opened.drop_watcher, watcher_id),
        )
    if opened.scalable is not None:
        yield from _held_of_scalable(opened.scalable)


def _held_of_scalable(client: ScalableClient) -> Iterator[_Held]:
    denial = ClientError(ServerError.AuthorizationError, "Client is not authorized any more")
    for session_id, session in list(client.sessions.items()):
        if session.topic is not None:
            yield _Held(
                TopicOperation.LOOKUP,
                Target.of_topic(session.topic.name),
                partial(client.refuse_session, session_id, denial),
            )
    for consumer_id, member in list(client.members.items()):
        key = member.group.key
        yield _Held(
            TopicOperation.CONSUME,
            Target.of_topic(TopicName.parse(key.topic), key.subscription),
            partial(client.drop_member, consumer_id),
        )
    for watch in client.watches.all():
        yield _Held(
            NamespaceOperation.GET_TOPICS,
            Target.of_namespace(watch.namespace),
            partial(client.watches.refuse, watch.watch_id, denial),
        )
