"""What the log tells the operator of failed logins: each cause once a minute, with advice.

The level INFO has each failure with its client.
"""

from __future__ import annotations

import logging

from pulsark.security.limits import COMPLAINT_SECONDS

log = logging.getLogger(__name__)

_ADVICE = {
    "method": "clients show no credentials, or in a way that authenticationProviders does not name",
    "malformed": "what clients show is not in the form of a token or of user:password",
    "signature": "tokens are signed by a key that tokenSecretKey, tokenPublicKey or the issuer "
    "does not have",
    "algorithm": "tokens are signed by another algorithm than tokenPublicAlg, or one that the "
    "secret is too short for",
    "expired": "tokens have expired; clients need new ones (pulsark tokens create)",
    "not_yet": "tokens are not valid yet; compare the clocks of this machine and of their issuer",
    "claim": "tokens lack a claim, or its form; pulsark tokens show prints what is in one",
    "audience": "tokens are made for another audience than tokenAudience or openIDAllowedAudiences",
    "issuer": "tokens are of an issuer that openIDAllowedTokenIssuers does not name",
    "role": "the claim of tokens, or the certificate, names no role; see tokenAuthClaim",
    "password": "users or passwords are not those of basicAuthConf",
    "certificate": "clients have no certificate, or one without exactly one common name",
    "crowd": "so many of one address fail that the broker closes its new connections for moments "
    "(maxFailedLoginsPerSecondPerIp); logLevel=INFO names who fails",
    "busy": "too many passwords are being verified; logLevel=INFO names the addresses",
    "provider": "a provider of authentication has a defect, which is in this log",
}
_OTHER = "see the log of level INFO"


class Complaints:
    """Those of one broker."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        """When each cause was told last."""
        self._silent: dict[str, int] = {}
        """How many came since."""

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
            f", and {more} more since the last of these lines" if more else "",
            _ADVICE.get(known, _OTHER),
        )
