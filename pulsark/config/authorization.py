"""The settings of authorization: what those who are let in may do."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.authentication import AuthenticationSettings
from pulsark.config.spec import setting

PULSAR_AUTHORIZATION = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class AuthorizationSettings(AuthenticationSettings):
    """That part of ``Settings``, and what it needs; with the audit of both."""

    authorizationEnabled: bool = setting(
        False, "", "Clients may do only what their role was granted; needs authenticationEnabled"
    )
    authorizationProvider: str = setting(
        PULSAR_AUTHORIZATION,
        "",
        "Who decides: Pulsar's rules under this name, or an entry point of the group "
        "pulsark.authorization",
    )
    authorizationAllowWildcardsMatching: bool = setting(
        False, "", "* at the begin or the end of a granted role stands for any text"
    )
    superUserRoles: tuple[str, ...] = setting((), "", "Roles that may do everything")
    proxyRoles: tuple[str, ...] = setting(
        (), "", "Roles of proxies, which say for whom they ask; both need the right"
    )
    auditEnabled: bool | None = setting(
        None,
        "",
        "Changes, denials and failed logins are noted in the topic "
        "persistent://pulsar/system/audit; empty: where authenticationEnabled is on",
        own=True,
    )
    auditDataAccess: bool = setting(
        False,
        "",
        "The audit notes the first time in a day (UTC) that a role reads or writes a topic",
        own=True,
    )
    auditFailClosed: bool = setting(
        False,
        "",
        "Administrative changes are refused with 503 while the audit topic takes no events; "
        "publishing and consuming go on",
        own=True,
    )
