"""The configured authentication providers, and the order in which they are asked.

Importing this is cheap. A provider's libraries are imported when it is created, at the start of the
broker and not at the first client.
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
"""The entry point group for providers of other packages, which implement ``Provider``."""

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
    """The providers of ``authenticationProviders``, in its order. Raises ``ConfigError``."""
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
    """The principal of the first provider that accepts the credentials, or ``LoginError``.

    ``failure`` is the error of earlier providers; the most informative error is raised.
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
    """The login error for any other exception of a provider, which is a defect."""
    log.error("the provider %s failed", provider.name, exc_info=error)
    return LoginError("provider", f"the provider {provider.name} failed")


def _telling(before: LoginError | None, after: LoginError) -> LoginError:
    """The more informative failure: the first that is not just about a form unknown to a provider.

    A provider that reports expired credentials has verified the rest of them.
    """
    if (
        before is None
        or after.reason == EXPIRED
        or before.reason in ("malformed", "issuer", "algorithm")
    ):
        return after
    return before
