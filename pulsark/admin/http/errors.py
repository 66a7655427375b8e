"""How failures become responses: a status and ``{"reason": text}``."""

from __future__ import annotations

import json
import logging

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Send

from pulsark.dispatch.topics.topic_making import NamespaceFullError
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.metadata.records import (
    AlreadyExistsError,
    DoesNotExistError,
    InUseError,
    InvalidResourceError,
    ProtectedError,
)
from pulsark.schemas.definition import InvalidSchemaDataError
from pulsark.storage.cursor.owners import CursorNameError

log = logging.getLogger(__name__)

_STATUS_OF_CODE = {
    ServerError.TopicNotFound: 404,
    ServerError.SubscriptionNotFound: 404,
    ServerError.ConsumerNotFound: 404,
    ServerError.InvalidTopicName: 412,
    ServerError.NotAllowedError: 405,
    ServerError.ProducerBusy: 409,
    ServerError.ConsumerBusy: 412,
    ServerError.TopicTerminatedError: 405,
    ServerError.AuthenticationError: 401,
    ServerError.AuthorizationError: 403,
    ServerError.TooManyRequests: 429,
    ServerError.IncompatibleSchema: 409,
    ServerError.ServiceNotReady: 503,
    ServerError.MetadataError: 503,
    ServerError.ProducerBlockedQuotaExceededError: 507,
    ServerError.ProducerBlockedQuotaExceededException: 507,
}
_STATUS_OF_RESOURCE: dict[type[PulsarkError], int] = {
    AlreadyExistsError: 409,
    DoesNotExistError: 404,
    InUseError: 409,
    InvalidResourceError: 412,
    ProtectedError: 403,
}


def fail(status: int, reason: str) -> HTTPException:
    """The exception that ends a request with this status."""
    return HTTPException(status, reason)


async def refuse(send: Send, status: int, reason: str) -> None:
    """End a request that reaches no route, and its connection."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json"), (b"connection", b"close")],
        }
    )
    await send({"type": "http.response.body", "body": json.dumps({"reason": reason}).encode()})


def status_of(error: PulsarkError) -> int:
    """The status with which an error is answered."""
    if isinstance(error, InvalidSchemaDataError):
        return 422
    if isinstance(error, NamespaceFullError | CursorNameError):
        return 412
    if isinstance(error, ClientError):
        return _STATUS_OF_CODE.get(error.code, 500)
    return _STATUS_OF_RESOURCE.get(type(error), 500)


def install(app: FastAPI) -> None:
    """Make every failure of a request an answer with a reason."""
    app.add_exception_handler(StarletteHTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(PulsarkError, _on_error)
    app.add_exception_handler(Exception, _on_bug)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"reason": str(error.detail)}, error.status_code, headers=error.headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    return JSONResponse({"reason": "The request is not valid"}, 400)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PulsarkError)
    status = status_of(error)
    if status >= 500:
        log.warning("%s %s: %s", request.method, request.url.path, error)
    return JSONResponse({"reason": str(error)}, status)


async def _on_bug(request: Request, error: Exception) -> Response:
    # Starlette raises it again after this answer, so that it reaches the log with its trace.
    return JSONResponse({"reason": f"Internal error ({type(error).__name__})"}, 500)
