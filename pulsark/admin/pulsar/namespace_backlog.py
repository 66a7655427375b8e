"""What is done to the subscriptions of all topics of a namespace, or of one of its bundles.

Unloaded topics that have such a subscription are loaded one by one, and only for as long as it
takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import call_of
from pulsark.admin.http.guard import Guarded, namespace
from pulsark.admin.http.merging import all_done
from pulsark.admin.http.paths import BUNDLE
from pulsark.admin.http.places import EachBroker
from pulsark.admin.http.requests import BrokerOf, NamespaceOf, done, unquoted
from pulsark.admin.pulsar.bundles import checked_bundle
from pulsark.admin.pulsar.policies import existing_namespace
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.subscription.subscription import Subscription
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.paths import managed_ledger_path
from pulsark.security.operations import NamespaceOperation as N
from pulsark.storage.cursor.owners import CursorOwner, check_owner, is_system_cursor
from pulsark.storage.managed_ledger.managed_ledger import read_record
from pulsark.wire.position import LATEST
from pulsark.wire.topic_name import TopicName

router = Guarded(
    at=EachBroker(all_done),
    prefix="/admin/v2/namespaces/{tenant}/{namespace}",
    tags=["subscriptions"],
)


@router.post("/clearBacklog", needs=namespace(N.CLEAR_BACKLOG))
@router.post("/clearBacklog/{subscription}", needs=namespace(N.CLEAR_BACKLOG, of_subscription=True))
@router.post(BUNDLE + "/clearBacklog", needs=namespace(N.CLEAR_BACKLOG))
@router.post(
    BUNDLE + "/clearBacklog/{subscription}", needs=namespace(N.CLEAR_BACKLOG, of_subscription=True)
)
async def clear_backlog(
    name: NamespaceOf,
    request: Request,
    broker: BrokerOf,
    bundle: str = "",
    subscription: str = "",
) -> Response:
    """Acknowledge everything there is, for all subscriptions or those of a name."""
    wanted = unquoted(subscription)
    check_owner(wanted, CursorOwner.CLIENTS)
    await _each(broker, request, name, bundle, wanted, _clear)
    return done()


@router.post("/unsubscribe/{subscription}", needs=namespace(N.UNSUBSCRIBE, of_subscription=True))
@router.post(
    BUNDLE + "/unsubscribe/{subscription}", needs=namespace(N.UNSUBSCRIBE, of_subscription=True)
)
async def unsubscribe(
    name: NamespaceOf, subscription: str, request: Request, broker: BrokerOf, bundle: str = ""
) -> Response:
    """Delete the subscriptions of a name; 412 if one has consumers."""
    wanted = unquoted(subscription)
    check_owner(wanted, CursorOwner.CLIENTS)
    await _each(broker, request, name, bundle, wanted, Subscription.delete)
    return done()


async def _clear(subscription: Subscription) -> None:
    await subscription.acks.administered_through(LATEST)


async def _each(
    broker: Broker,
    request: Request,
    namespace: str,
    bundle: str,
    wanted: str,
    do: Callable[[Subscription], Awaitable[None]],
) -> None:
    """Do something with every subscription of clients, or with those of a name."""
    await existing_namespace(broker, namespace)
    within = await checked_bundle(broker, namespace, bundle) if bundle else ""
    async for topic in in_turns(await broker.catalog.list_topics(namespace)):
        name = TopicName.parse(topic)
        if within and await broker.ownership.bundle_of(name) != within:
            continue
        if not await _is_ours(broker, request, name):
            continue
        if not broker.topics.is_loading(name) and not await _has(broker, name, wanted):
            continue
        async with broker.topics.visit(name) as visited:
            try:
                loaded = visited if visited is not None else await broker.topics.load(name)
            except ClientError as error:
                if error.code is ServerError.TopicNotFound:
                    continue  # deleted meanwhile
                raise
            for subscription in list(loaded.subscriptions.values()):
                if wanted in ("", subscription.name) and not is_system_cursor(subscription.name):
                    await do(subscription)


async def _is_ours(broker: Broker, request: Request, name: TopicName) -> bool:
    """Whether this broker does it. What nobody serves, the broker does that the client asked."""
    peers = broker.other_brokers()
    if peers is None:
        return True
    if broker.ownership.has(await broker.ownership.bundle_named(name)):
        return True
    call = call_of(request)
    if call is not None and call.sender != peers.knows.broker_id:
        return False
    return await peers.knows.where(name) is None


async def _has(broker: Broker, name: TopicName, wanted: str) -> bool:
    """Whether a topic that is not loaded has a durable subscription, or one of that name."""
    record = await read_record(managed_ledger_path(name), broker.metadata)
    if record is None:
        return False
    await broker.ownership.own(name)  # what is to be done with them, is done here
    cursors = await broker.cursor_logs.mark_deletes(name, record.topic_id) or {}
    return wanted in cursors if wanted else bool(cursors)
