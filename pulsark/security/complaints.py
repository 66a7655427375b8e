"""Warns the operator of failed logins: each cause at most once a minute, with advice.

At level INFO, the log has each failure with its client.
"""

from __future__ import annotations

import logging

from pulsark.security.limits import COMPLAINT_SECONDS

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
        self._silent: dict[str, int] = {}
        """How many failures followed."""

    def note(self, reason: str, now: float) -> None:
        """A login has failed for this reason."""
        known = reason if reason in _ADVICE else "other"
        before = self._told.get(known)
        if before is not None and now - before < COMPLAINT_SECONDS:
            self._silent[known] = self._silent.get(known, 0) + 1
            return
        self._told[known] = now
        more = self._silent.pop(known, 0)
        log.warning(
            "a client cannot log in (%s%s): %s",
            known,
            f", and {more} more since the last such warning" if more else "",
            _ADVICE.get(known, _OTHER),
        )
