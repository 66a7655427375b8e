"""The application: routes, and what is the same for every request."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsark import __version__
from pulsark.admin.http import errors, forwarding, places, spreading
from pulsark.admin.http.broker_calls import CALL, BrokerGate
from pulsark.admin.http.browsers import Gate
from pulsark.admin.http.budgets import ALWAYS_ANSWERED, RequestGate, RoomGate
from pulsark.admin.http.errors import refuse
from pulsark.admin.http.guard import Guarded, login
from pulsark.admin.http.places import ANYWHERE
from pulsark.admin.http.requests import value
from pulsark.admin.pulsar import (
    anti_affinity,
    audit_records,
    bookies,
    brokers,
    bundles,
    clusters,
    isolation,
    lookup,
    messages,
    metrics,
    namespace_backlog,
    namespaces,
    partitioned,
    permissions,
    policies,
    resource_groups,
    schemas,
    status,
    subscriptions,
    tenants,
    topic_stats,
    topics,
    unsupported,
)
from pulsark.admin.pulsar.scrapes import Scrapes
from pulsark.admin.spark import (
    bulk_publish,
    queries,
    sealing,
    segments,
    tables,
    time_travel,
    views,
)
from pulsark.admin.spark.background_work import Works
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.spark.query_claims import QueryClaims
from pulsark.dispatch.stats.stats import Stats
from pulsark.limits import HTTP_TARGET_BYTES_MAX
from pulsark.rates.bucket import TokenBucket
from pulsark.runtime import Clock

router = Guarded(at=ANYWHERE)


@router.get("/admin/openapi.json", needs=login, include_in_schema=False)
async def describe(request: Request) -> Response:
    """The description of all routes."""
    return value(request.app.openapi())


def build_app(broker: Broker, stats: Stats) -> ASGIApp:
    """The ASGI application of one broker."""
    app = FastAPI(
        title="Pulsark admin API",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.broker = broker
    app.state.stats = stats
    app.state.queries = QueryClaims(broker.clock)
    audit = broker.audit
    app.state.scrapes = Scrapes(broker.clock)
    app.state.works = Works()
    app.state.parts_of_works = Works()  # of other brokers, which note what comes of the whole
    if audit is not None:
        app.state.works = Works(lambda ident, status: audit.broker("work", f"{ident}: {status}"))
    errors.install(app)
    app.add_exception_handler(forwarding.Elsewhere, forwarding.forward)
    app.add_exception_handler(places.ToPartitions, spreading.to_partitions)
    app.add_exception_handler(places.ToBrokers, spreading.to_brokers)
    app.router.routes.extend(_routes())
    served: ASGIApp = RoomGate(app)
    if audit is not None:
        from pulsark.admin.http.audit import AuditGate

        closed = broker.settings.auditFailClosed
        served = AuditGate(served, audit, broker.runtime, fail_closed=closed)
    if broker.logins is not None:
        from pulsark.admin.http.login import LoginGate

        served = LoginGate(served, broker.logins, broker.settings)
    served = RawPaths(served, broker.clock, Gate(broker.settings), _request_rate(broker))
    return RequestGate(BrokerGate(served, broker.peers, broker.clock), broker)


def _routes() -> list[BaseRoute]:
    """All of them, which know nothing of their application.

    They are put in one list. A router that FastAPI includes makes all its routes a second time when
    the first request looks for one there: the event loop would wait for it, and look longer.
    """
    routers = [
        audit_records.router,
        clusters.router,
        isolation.router,
        tenants.router,
        namespaces.router,
        bundles.router,
        namespace_backlog.router,
        permissions.router,
        policies.router,
        resource_groups.router,
        partitioned.router,
        topics.router,
        topic_stats.router,
        subscriptions.router,
        messages.router,
        time_travel.router,
        segments.router,
        sealing.router,
        tables.router,
        bulk_publish.router,
        views.router,
        lookup.router,
        schemas.router,
        bookies.router,
        brokers.router,
        metrics.router,
        status.router,
        queries.router,
        anti_affinity.router,
        unsupported.router,
        router,
        segments.plans,
        unsupported.switched_off,
    ]
    return [route for each in routers for route in each.routes]


def _request_rate(broker: Broker) -> TokenBucket | None:
    """How many requests all clients together may send, if that is limited."""
    settings = broker.settings
    if not settings.httpRequestsLimitEnabled:
        return None
    rate = settings.httpRequestsMaxPerSecond
    most = max(rate, 1.0)  # of less than one token there would never be enough
    return TokenBucket(most, broker.clock.monotonic(), period=most / rate)


class RawPaths:
    """Lets requests in, routes them by the path as it was sent, and dates every response.

    A name may hold an encoded slash, which a decoded path would show as one more segment.
    """

    def __init__(self, app: ASGIApp, clock: Clock, gate: Gate, rate: TokenBucket | None) -> None:
        self._app = app
        self._clock = clock
        self._gate = gate
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return

        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = formatdate(self._clock.now_ms() / 1000, usegmt=True)
                message["headers"] = [*message.get("headers", ()), (b"date", date.encode())]
            await send(message)

        # What a broker asks was counted where its client asked.
        if (
            CALL not in scope.get("state", {})
            and scope["path"] not in ALWAYS_ANSWERED
            and self._exceeds_rate()
        ):
            await refuse(send_dated, 429, "Too many requests; httpRequestsMaxPerSecond is exceeded")
            return
        raw: bytes = scope["raw_path"]
        if len(raw) + len(scope["query_string"]) > HTTP_TARGET_BYTES_MAX:
            await refuse(send_dated, 414, "The request target is too long")
            return
        names = {name for name, _ in scope["headers"]}
        if b"content-length" in names and b"transfer-encoding" in names:
            # A proxy may take the other one, and what is a body here for the next request.
            reason = "A request has either Content-Length or Transfer-Encoding, not both"
            await refuse(send_dated, 400, reason)
            return
        refusal = self._gate.refusal(scope["headers"])
        if refusal is not None:
            await refuse(send_dated, 403, refusal)
            return
        path = raw.decode("latin-1")
        changed: dict[str, Any] = {"path": path.removesuffix("/") or "/", "root_path": ""}
        if scope["method"] == "HEAD":
            changed["method"] = "GET"  # uvicorn leaves the body out
        await self._app({**scope, **changed}, receive, send_dated)

    def _exceeds_rate(self) -> bool:
        """Whether there are too many requests; one that is refused does not count."""
        if self._rate is None:
            return False
        now = self._clock.monotonic()
        if self._rate.tokens(now) < 1:
            return True
        self._rate.take(1, now)
        return False
