"""Spark queries: what they read, how far they are, and the subscriptions that follow them.

Pulsark's own. A query claims its topics (``PUT /{query}``), says about twice a second that it runs
(``POST /{query}``), and ends (``DELETE``). ``PUT /{query}/subscriptions`` makes its subscription
where it is missing, ``POST /{query}/acknowledge`` moves it, both on many partitions at once:
``{"positions": {partition: {"ledgerId", "entryId"}}}``, the answer is ``{"missing": [...]}`` with
those that are not there. ``PUT /{query}/progress`` is what the listener in the driver knows.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, Rights, RightsOf, in_body
from pulsark.admin.http.places import LEADER
from pulsark.admin.http.requests import (
    BrokerOf,
    done,
    flag,
    integer,
    json_object,
    position,
    strings,
    value,
)
from pulsark.admin.pulsar.query_lag import described
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import answers_in_turns, in_turns
from pulsark.dispatch.peers.topics_elsewhere import TopicsElsewhere
from pulsark.dispatch.spark.query_claims import Query, QueryClaims, QueryProgress
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import ClientError, ServerError
from pulsark.limits import PLANNED_TOPICS_MAX
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.cursor.owners import check_new_name
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName

router = Guarded(at=LEADER, prefix="/admin/v2/spark-queries", tags=["pulsark"])

TEXT_CHARS_MAX = 256
TOPIC_NAMES_PER_STEP = 200
"""Names parsed and checked in one turn: about a millisecond."""
_PARTITIONS_AT_ONCE = 50


def _claims(request: Request) -> QueryClaims:
    claims: QueryClaims = request.app.state.queries
    return claims


ClaimsOf = Annotated[QueryClaims, Depends(_claims)]


async def _query(query: str, claims: ClaimsOf, rights: RightsOf) -> Query:
    found = claims.get(query)
    if found is None or not await rights.owns(found.owner):
        raise fail(404, "Nothing is known of this query")
    return found


QueryOf = Annotated[Query, Depends(_query)]


@router.get("", needs=in_body(T.CONSUME))
async def list_queries(
    claims: ClaimsOf, request: Request, broker: BrokerOf, rights: RightsOf
) -> Response:
    """The queries that run, what they read and how far behind they are; of others nothing.

    ``?getEarliestTimeInBacklog=true``: since when, too, which reads an entry of each partition.
    """
    earliest = flag(request, "getEarliestTimeInBacklog")
    found = []
    for query in claims.running():
        if not await rights.owns(query.owner):
            continue
        topics = sorted(query.topics)
        found.append(
            {**await described(broker, query, topics, earliest=earliest), "topics": topics}
        )
    return value(found)


@router.put("/{query}", needs=in_body(T.CONSUME))
async def claim(
    query: str, request: Request, broker: BrokerOf, claims: ClaimsOf, rights: RightsOf
) -> Response:
    """A query claims a subscription of topics, if it has one; 409 says who has it.

    Topics that do not exist are left out.
    """
    body = await json_object(request)
    client, subscription = body.get("client"), body.get("subscription")
    if not isinstance(client, str) or not isinstance(subscription, str | None):
        raise fail(400, "client and subscription are texts")
    if max(len(query), len(client)) > TEXT_CHARS_MAX:
        raise fail(412, f"query and client have at most {TEXT_CHARS_MAX} characters")
    if subscription is not None:
        check_new_name(subscription)
    known = claims.get(query)
    if known is not None and not await rights.owns(known.owner):
        raise fail(409, "This id belongs to another role's query")
    topics = await _permitted(
        strings(body.get("topics"), "topics"),
        rights,
        subscription if known is None else known.subscription,
    )
    there = await _existing(broker, topics if known is None else topics - known.topics)
    held = claims.claim(query, client, subscription, there, rights.owner)
    if held is not None:
        holder, topic = held
        raise fail(
            409,
            f"Subscription {subscription} of {topic} is in use by another Spark query, "
            f"at {holder.client}",
        )
    return done()


@router.post("/{query}", needs=in_body(T.CONSUME))
async def renew(query: QueryOf, request: Request, claims: ClaimsOf) -> Response:
    """A query still runs; 404 if it has to claim again. ``positions``: up to where it has read."""
    found = _positions(await json_object(request))
    claims.renew(query.query_id, {n: p for n, p in found.items() if _is_claimed(query, n)})
    return done()


@router.delete("/{query}", needs=in_body(T.CONSUME))
async def release(query: QueryOf, claims: ClaimsOf) -> Response:
    """A query has ended."""
    claims.release(query.query_id)
    return done()


@router.put("/{query}/progress", needs=in_body(T.CONSUME))
async def report(query: QueryOf, request: Request, broker: BrokerOf) -> Response:
    """A batch is finished: ``name``, ``id``, ``runId``, ``batchId`` and the two rates of Spark."""
    body = await json_object(request)
    texts = [body.get(key) for key in ("name", "id", "runId")]
    if not all(isinstance(text, str) for text in texts if text is not None):
        raise fail(400, "name, id and runId are texts")
    name, query_id, run_id = (text and text[:TEXT_CHARS_MAX] for text in texts)
    query.progress = QueryProgress(
        name,
        query_id or "",
        run_id or "",
        integer(body.get("batchId"), "batchId"),
        _rate(body.get("inputRowsPerSecond")),
        _rate(body.get("processedRowsPerSecond")),
        broker.clock.now_ms(),
    )
    return done()


@router.put("/{query}/subscriptions", needs=in_body(T.CONSUME))
async def create_subscriptions(
    query: QueryOf, request: Request, broker: BrokerOf, rights: RightsOf
) -> Response:
    """Make the query's subscription where it is missing; it receives each position next."""
    name = _subscription(query)
    await _check(rights, query.topics, name)

    async def create(topic: Topic, first: Position) -> bool:
        await topic.registry.create(name, first, {}, durable=True)
        return True

    return await _each(broker, query, request, rights, create, TopicsElsewhere.subscribe_at)


@router.post("/{query}/acknowledge", needs=in_body(T.CONSUME))
async def acknowledge(
    query: QueryOf, request: Request, broker: BrokerOf, rights: RightsOf
) -> Response:
    """Move the query's subscription to each position, durably."""
    name = _subscription(query)
    await _check(rights, query.topics, name)

    async def move(topic: Topic, through: Position) -> bool:
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            return False
        if subscription.type.consumer_count:
            raise fail(412, "Subscription has connected consumers, who acknowledge by themselves")
        await subscription.acks.administered_through(through)
        return True

    return await _each(broker, query, request, rights, move, TopicsElsewhere.acknowledge)


async def _permitted(names: Iterable[str], rights: Rights, subscription: str | None) -> set[str]:
    """Return the topics of these names; 403 at the first that the client may not consume."""
    found: set[str] = set()
    async for name in in_turns(names, TOPIC_NAMES_PER_STEP):
        topic = TopicName.parse(name).base
        if str(topic) not in found:
            await rights.check_topic(T.CONSUME, topic, subscription)
            found.add(str(topic))
    return found


async def _existing(broker: Broker, topics: Collection[str]) -> set[str]:
    """Return the topics that exist, with or without partitions."""

    async def is_there(topic: str) -> bool:
        try:
            await broker.catalog.require_topic(TopicName.parse(topic))
        except ClientError:
            return False
        return True

    answers = answers_in_turns(is_there, list(topics))
    return {topic async for topic, exists in answers if exists}


async def _check(rights: Rights, topics: Iterable[str], subscription: str | None) -> None:
    """Who reads topics may consume them, by that subscription if there is one."""
    await rights.check_topics(T.CONSUME, topics, subscription)


async def _each(
    broker: Broker,
    query: Query,
    request: Request,
    rights: Rights,
    do: Callable[[Topic, Position], Awaitable[bool]],
    do_elsewhere: Callable[[TopicsElsewhere, TopicName, str, Position], Awaitable[bool]],
) -> Response:
    """Do something with partitions; the answer names those of which it could not be done."""
    places = _positions(await json_object(request))
    await _check_unclaimed(broker, query, rights, places)
    positions = list(places.items())
    elsewhere, subscription = broker.topics_elsewhere(), _subscription(query)

    async def one(name: str, place: Position) -> str | None:
        topic_name = TopicName.parse(name)
        try:
            if elsewhere is not None and await do_elsewhere(
                elsewhere, topic_name, subscription, place
            ):
                return None
            topic = await broker.topics.load(topic_name)
        except ClientError as error:
            if error.code is not ServerError.TopicNotFound:
                raise
            return name
        return None if await do(topic, place) else name

    missing: list[str | None] = []
    for start in range(0, len(positions), _PARTITIONS_AT_ONCE):
        some = positions[start : start + _PARTITIONS_AT_ONCE]
        missing += await asyncio.gather(*[one(name, place) for name, place in some])
    return value({"missing": [name for name in missing if name is not None]})


def _subscription(query: Query) -> str:
    if query.subscription is None:
        raise fail(412, "This query has no subscription")
    return query.subscription


async def _check_unclaimed(
    broker: Broker, query: Query, rights: Rights, partitions: Iterable[str]
) -> None:
    """412 for a partition of an existing topic that the query has not claimed.

    Topics that did not exist are not among its claims, and each is answered as missing.
    """
    unclaimed = [name for name in partitions if not _is_claimed(query, name)]
    there = await _existing(broker, {str(TopicName.parse(name).base) for name in unclaimed})
    if there:
        raise fail(412, f"{min(there)[:100]} is not one of the query's topics")
    await _check(rights, unclaimed, query.subscription)


def _is_claimed(query: Query, partition: str) -> bool:
    return str(TopicName.parse(partition).base) in query.topics


def _positions(body: Mapping[str, Any]) -> dict[str, Position]:
    """Return the positions of a body, by partition."""
    given = body.get("positions", {})
    if not isinstance(given, dict) or len(given) > PLANNED_TOPICS_MAX:
        raise fail(412, f"positions: an object of at most {PLANNED_TOPICS_MAX} partitions")
    return {str(TopicName.parse(name)): position(place) for name, place in given.items()}


def _rate(given: Any) -> float:
    """Rows a second; Spark says that it is not a number where there was no time to measure."""
    known = isinstance(given, int | float) and math.isfinite(given)
    return float(given) if known else 0.0
