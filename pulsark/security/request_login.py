"""The login of one request over HTTP or Flight, where each request has its own credentials."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING

from pulsark.security.limits import FAILED_LOGINS_DELAYED_MAX
from pulsark.security.principal import Origin
from pulsark.security.provider import Credentials, LoginError, checked_role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.security.logins import Logins
    from pulsark.security.peer import TlsPeer
    from pulsark.security.principal import Principal
    from pulsark.security.trials import Trial

    Headers = Callable[[str], Sequence[str]]
    """The values of a header, by its lower-case name."""

log = logging.getLogger(__name__)

REFUSED = "Authentication required"
"""The answer for every client; only the log has the cause."""


async def log_in(
    logins: Logins,
    headers: Headers,
    host: str,
    port: int = 0,
    certificate: bytes | None = None,
    *,
    via: str = "rest",
    tls: TlsPeer | None = None,
    trial: Trial | None = None,
) -> Principal:
    """The principal of a request. Raises ``LoginError``, with a delay if too many fail.

    ``trial`` is the trial of its connection; a failure ends the connection.
    """
    try:
        found = await _log_in(logins, headers, host, port, certificate)
        logins.pass_trial(trial)
        return found
    except LoginError as error:
        delay = logins.delay_s(host, trial, via)
        address = f"{host}:{port}" if port else host
        logins.refused(Origin(via, address, tls=tls), error)
        level = logging.DEBUG if delay else logging.INFO
        log.log(level, "a request from %s: login failed: %s", host, error)
        if delay and logins.delayed < FAILED_LOGINS_DELAYED_MAX:
            logins.delayed += 1
            try:
                await asyncio.sleep(delay)
            finally:
                logins.delayed -= 1
        raise


async def _log_in(
    logins: Logins, headers: Headers, host: str, port: int, certificate: bytes | None
) -> Principal:
    methods, originals = headers("x-pulsar-auth-method-name"), headers("x-original-principal")
    if len(methods) > 1 or len(originals) > 1:
        raise LoginError("malformed", "a header is repeated")
    shown = Credentials("", b"", f"{host}:{port}" if port else host, certificate)
    asked = logins.of_request(headers("authorization"), methods[0] if methods else None, shown)
    found = await asked if isawaitable(asked) else asked
    original = originals[0] if originals else ""
    # A role that names itself does not act for another one.
    if not original or original == found.role:
        return found
    return replace(found, original=checked_role(original))
