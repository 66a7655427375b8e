"""The ways to log in that are configured, from their names, and the order in which they are asked.

Importing this is cheap. The libraries of a provider are imported when it is made, at the start and
not at the first client.
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from pulsark.errors import ConfigError, near_miss
from pulsark.security.provider import EXPIRED, LoginError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.runtime import Runtime
    from pulsark.security.principal import Principal
    from pulsark.security.provider import Credentials, Provider

log = logging.getLogger(__name__)

ENTRY_POINTS = "pulsark.authentication"
"""The group in which a package names a class of its own: ``Provider`` says what it has."""

_PULSAR = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
_OURS = {
    "token": "pulsark.security.tokens:TokenProvider",
    "basic": "pulsark.security.passwords:PasswordProvider",
    "tls": "pulsark.security.certificates:CertificateProvider",
    "openid": "pulsark.security.openid:OpenIdProvider",
}
_NAMES = {
    **{name: name for name in _OURS},
    f"{_PULSAR}Token": "token",
    f"{_PULSAR}Basic": "basic",
    f"{_PULSAR}Tls": "tls",
    "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID": "openid",
}


def providers_of(settings: Settings, runtime: Runtime) -> list[Provider]:
    """Those that ``authenticationProviders`` names, in its order. Raises ``ConfigError``."""
    if not settings.authenticationProviders:
        raise ConfigError(
            "authenticationEnabled=true and authenticationProviders is empty: nobody could log "
            f"in. Name one or more of {', '.join(_OURS)}"
        )
    names = dict.fromkeys(_NAMES.get(n, n) for n in settings.authenticationProviders)
    return [_class_of(name)(settings, runtime) for name in names]


def _class_of(name: str) -> Any:
    if name in _OURS:
        module, _, own = _OURS[name].partition(":")
        return getattr(import_module(module), own)
    found = entry_points(group=ENTRY_POINTS)
    for each in found:
        if each.name == name:
            try:
                return each.load()
            except Exception as error:
                raise ConfigError(
                    f"authenticationProviders: {name} cannot be loaded: {error}"
                ) from error
    known = [*_NAMES, *found.names]
    raise ConfigError(
        f"authenticationProviders: {name[:200]} is not known{near_miss(name, known)}; "
        f"{', '.join(_OURS)} are, by Pulsar's class names too, and entry points of the group "
        f"{ENTRY_POINTS}"
    )


def first_of(
    providers: Sequence[Provider], credentials: Credentials, failure: LoginError | None = None
) -> Principal | Awaitable[Principal]:
    """Whom the first provider that accepts the credentials finds; ``LoginError`` if none does.

    ``failure`` is that of the providers which were asked before; the one that says most is raised.
    """
    for index, provider in enumerate(providers):
        try:
            found = provider.log_in(credentials)
        except LoginError as error:
            failure = _telling(failure, error)
            continue
        except Exception as error:  # noqa: BLE001 - of somebody's own provider
            failure = _failed(provider, error)
            continue
        if isawaitable(found):
            return _or_rest(provider, found, providers[index + 1 :], credentials, failure)
        return found
    raise failure or LoginError("method", "no provider accepts these credentials")


async def _or_rest(
    provider: Provider,
    found: Awaitable[Principal],
    rest: Sequence[Provider],
    credentials: Credentials,
    failure: LoginError | None,
) -> Principal:
    try:
        return await found
    except LoginError as error:
        failure = _telling(failure, error)
    except Exception as error:  # noqa: BLE001 - of somebody's own provider
        failure = _failed(provider, error)
    result = first_of(rest, credentials, failure)
    return await result if isawaitable(result) else result


def _failed(provider: Provider, error: Exception) -> LoginError:
    """A provider raised something else: a defect, so the login fails."""
    log.error("the provider %s failed", provider.name, exc_info=error)
    return LoginError("provider", f"the provider {provider.name} failed")


def _telling(before: LoginError | None, after: LoginError) -> LoginError:
    """Which of two failures says more: the first that is not only of a form foreign to a provider.

    A provider that says that credentials have expired has verified the rest of them.
    """
    if (
        before is None
        or after.reason == EXPIRED
        or before.reason in ("malformed", "issuer", "algorithm")
    ):
        return after
    return before
