"""Spark queries that follow their streams with a subscription. Pulsark's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from pulsark.admin.errors import fail
from pulsark.admin.requests import BrokerOf, done, json_object, strings, value
from pulsark.dispatch.query_claims import QueryClaims
from pulsark.limits import SUBSCRIPTION_NAME_CHARS_MAX

router = APIRouter(prefix="/admin/v2/spark-queries", tags=["pulsark"])

TEXT_CHARS_MAX = 256


def _claims(request: Request) -> QueryClaims:
    claims: QueryClaims = request.app.state.queries
    return claims


ClaimsOf = Annotated[QueryClaims, Depends(_claims)]


@router.get("")
async def list_queries(claims: ClaimsOf, broker: BrokerOf) -> Response:
    """The queries that run, and what they follow."""
    return value(
        [
            {
                "query": query.query_id,
                "client": query.client,
                "subscription": query.subscription,
                "startedAt": broker.iso_time(query.started_ms),
                "topics": sorted(query.topics),
            }
            for query in claims.running()
        ]
    )


@router.put("/{query}")
async def claim(query: str, request: Request, claims: ClaimsOf) -> Response:
    """A query claims a subscription of topics; 409 says who has it."""
    body = await json_object(request)
    client, subscription = body.get("client"), body.get("subscription")
    if not isinstance(client, str) or not isinstance(subscription, str):
        raise fail(400, "client and subscription are texts")
    if max(len(query), len(client)) > TEXT_CHARS_MAX:
        raise fail(412, f"query and client have at most {TEXT_CHARS_MAX} characters")
    if len(subscription) > SUBSCRIPTION_NAME_CHARS_MAX:
        raise fail(412, f"A subscription has at most {SUBSCRIPTION_NAME_CHARS_MAX} characters")
    held = claims.claim(query, client, subscription, strings(body.get("topics"), "topics"))
    if held is not None:
        holder, topic = held
        raise fail(
            409,
            f"Subscription {subscription} of {topic} is in use by another Spark query, "
            f"at {holder.client}",
        )
    return done()


@router.post("/{query}")
async def renew(query: str, claims: ClaimsOf) -> Response:
    """A query still runs; 404 if it has to claim again."""
    if not claims.renew(query):
        raise fail(404, "Nothing is known of this query")
    return done()


@router.delete("/{query}")
async def release(query: str, claims: ClaimsOf) -> Response:
    """A query has ended."""
    if not claims.release(query):
        raise fail(404, "Nothing is known of this query")
    return done()
