"""Prefixes that Pulsar has and Pulsark refuses, so that tools get a clear answer."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from pulsark.admin.errors import fail

router = APIRouter(include_in_schema=False)

_METHODS = ["GET", "PUT", "POST", "DELETE"]
_FUNCTIONS = (
    *(f"/admin/v3/{name}" for name in ("functions", "sinks", "sources", "source", "sink")),
    "/admin/v3/packages",
    *(f"/admin/v2/{name}" for name in ("worker", "worker-stats", "functions")),
)


async def no_functions() -> Response:
    """Functions and connectors run in Spark, not here."""
    raise fail(409, "Function worker service is not enabled on this broker")


async def no_transactions() -> Response:
    """Transactions are not there yet."""
    raise fail(503, "Transactions are not enabled on this broker")


for _prefix in _FUNCTIONS:
    router.add_api_route(_prefix, no_functions, methods=_METHODS)
    router.add_api_route(_prefix + "/{rest:path}", no_functions, methods=_METHODS)
router.add_api_route("/admin/v3/transactions/{rest:path}", no_transactions, methods=_METHODS)
