"""Warns the operator of failed logins: each cause at most once a minute, with advice.

The warning names the client's address, and some of those that failed since the last one. At level
INFO, the log has each failure with its client.
"""

from __future__ import annotations

import logging

from pulsark.security.limits import COMPLAINT_ADDRESSES_MAX, COMPLAINT_SECONDS

log = logging.getLogger(__name__)

_ADVICE = {
    "method": "clients send no credentials, or use a method that authenticationProviders lacks",
    "malformed": "clients' credentials have neither the form of a token nor of user:password",
    "signature": "tokens are signed by a key that tokenSecretKey, tokenPublicKey or the issuer "
    "does not have",
    "algorithm": "tokens are signed by another algorithm than tokenPublicAlg, or one that the "
    "secret is too short for",
    "expired": "tokens have expired; clients need new ones (pulsark tokens create)",
    "not_yet": "tokens are not valid yet; compare the clocks of this machine and of their issuer",
    "claim": "tokens lack a claim, or it has a wrong type; pulsark tokens show prints the claims",
    "audience": "tokens are for another audience than tokenAudience or openIDAllowedAudiences",
    "issuer": "tokens come from an issuer that openIDAllowedTokenIssuers does not name",
    "role": "the claim of tokens, or the certificate, names no role; see tokenAuthClaim",
    "password": "users or passwords do not match the file of basicAuthConf",
    "certificate": "clients have no certificate, or one without exactly one common name",
    "crowd": "one address fails so often that the broker briefly closes its new connections "
    "(maxFailedLoginsPerSecondPerIp); logLevel=INFO names the clients",
    "busy": "too many passwords are being verified; logLevel=INFO names the addresses",
    "provider": "an authentication provider raised an error, which this log shows",
}
_OTHER = "see the log of level INFO"


class Complaints:
    """The warnings of one broker."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        """When each cause was logged last."""
        self._silent: dict[str, _Silent] = {}
        """What followed."""

    def note(self, reason: str, now: float, host: str) -> None:
        """A login of a client at this address has failed for this reason."""
        known = reason if reason in _ADVICE else "other"
        before = self._told.get(known)
        if before is not None and now - before < COMPLAINT_SECONDS:
            self._silent.setdefault(known, _Silent()).add(host)
            return
        self._told[known] = now
        silent = self._silent.pop(known, None)
        log.warning(
            "a client at %s cannot log in (%s%s): %s",
            host or "an unknown address",
            known,
            f", and {silent} since the last such warning" if silent else "",
            _ADVICE.get(known, _OTHER),
        )


class _Silent:
    """Failures of one cause without a warning."""

    def __init__(self) -> None:
        self._count = 0
        self._hosts: dict[str, None] = {}

    def add(self, host: str) -> None:
        self._count += 1
        if len(self._hosts) <= COMPLAINT_ADDRESSES_MAX:
            self._hosts[host] = None

    def __str__(self) -> str:
        named = ", ".join(list(self._hosts)[:COMPLAINT_ADDRESSES_MAX])
        more = " and others" if len(self._hosts) > COMPLAINT_ADDRESSES_MAX else ""
        return f"{self._count} more from {named}{more}"
