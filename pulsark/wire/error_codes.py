"""Maps errors to the protocol's codes."""

from __future__ import annotations

from pulsark.errors import ClientError, MetadataError, ServerError, StorageError


def error_code(error: BaseException) -> ServerError:
    """The protocol's code for an error."""
    if isinstance(error, ClientError):
        return error.code
    if isinstance(error, MetadataError):
        return ServerError.MetadataError
    if isinstance(error, StorageError):
        return ServerError.PersistenceError
    return ServerError.UnknownError
