"""The settings of authentication: who is let in, and by what."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.spec import setting
from pulsark.config.tls import TlsSettings

TOKEN_ALGORITHMS = tuple(f"{kind}{bits}" for kind in ("RS", "ES", "PS") for bits in (256, 384, 512))


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class AuthenticationSettings(TlsSettings):
    """That part of ``Settings``, and what it needs: clients show their certificates over TLS."""

    authenticationEnabled: bool = setting(
        False, "", "Clients must log in; otherwise every client may do everything"
    )
    authenticationProviders: tuple[str, ...] = setting(
        (),
        "",
        "Authentication providers, in this order: token, basic, tls, openid, Pulsar's class "
        "names of these, or entry points of the group pulsark.authentication",
    )
    authenticationRefreshCheckSeconds: int = setting(
        60,
        "s",
        "Time in which a client must replace expired credentials; then its connection is closed",
        ge=1,
        le=86_400,
    )
    maxFailedLoginsPerSecondPerIp: int = setting(
        100,
        "1/s",
        "Failed logins that the broker processes per address and second. Beyond, it closes new "
        "connections of the address at once, for some milliseconds at a time. 0: no limit",
        ge=0,
        own=True,
    )
    authenticateOriginalAuthData: bool = setting(
        False, "", "The broker also verifies the client's credentials that a proxy forwards"
    )
    anonymousUserRole: str = setting(
        "", "", "Role of clients without credentials; empty: they are refused"
    )
    authenticationRoleLoggingAnonymizer: str = setting(
        "NONE",
        "",
        "How the log shows roles: in full, not at all, or as a digest; the audit always shows "
        "them in full",
        choices=("NONE", "REDACTED", "SHA256", "MD5", "hash:SHA256", "hash:MD5"),
    )
    strictAuthMethod: bool = setting(
        False, "", "An HTTP request that does not name its authentication method is refused"
    )
    authenticateMetricsEndpoint: bool = setting(False, "", "/metrics requires a login")
    tokenSecretKey: str = setting(
        "",
        "",
        "Secret that signs tokens: file:///path, data:;base64,..., a path or base64; several are"
        " separated by commas. It overrides tokenPublicKey",
        secret=True,
    )
    tokenPublicKey: str = setting(
        "",
        "",
        "Public key, in DER or PEM, of the private key that signs tokens; locations as above",
    )
    tokenPublicAlg: str = setting(
        "RS256",
        "",
        "Algorithm of tokens that tokenPublicKey verifies",
        choices=TOKEN_ALGORITHMS,
    )
    tokenAuthClaim: str = setting("sub", "", "Claim of a token that names the role")
    tokenAudienceClaim: str = setting(
        "", "", "Claim of a token that must contain tokenAudience; empty: none"
    )
    tokenAudience: str = setting("", "", "Audience that tokens must have")
    tokenAllowedClockSkewSeconds: int = setting(
        0,
        "s",
        "Time for which tokens are good before they begin and after they have expired",
        ge=0,
        le=86_400,
    )
    basicAuthConf: str = setting(
        "",
        "",
        "File of users and hashes of their passwords, as htpasswd makes it: file:///path, "
        "data:;base64,..., a path or base64",
        secret=True,
    )
    openIDAllowedTokenIssuers: tuple[str, ...] = setting(
        (), "", "URLs of the issuers of OpenID Connect whose tokens are taken"
    )
    openIDAllowedAudiences: tuple[str, ...] = setting(
        (), "", "Audiences of which such a token must have one"
    )
    openIDRoleClaim: str = setting("sub", "", "Claim of such a token that names the role")
    openIDAcceptedTimeLeewaySeconds: int = setting(
        0,
        "s",
        "Time for which such tokens are good before they begin and after they have expired",
        ge=0,
        le=86_400,
    )
    openIDRequireIssuersUseHttps: bool = setting(
        True, "", "Issuers and their keys are asked over https only"
    )
    openIDTokenIssuerTrustCertsFilePath: str = setting(
        "", "path", "Certificates of authorities that issuers are trusted by; empty: the system's"
    )
    openIDHttpConnectionTimeoutMillis: int = setting(
        10_000, "ms", "Time for connecting to an issuer", ge=1, le=60_000
    )
    openIDHttpReadTimeoutMillis: int = setting(
        10_000, "ms", "Time for an issuer's answer", ge=1, le=60_000
    )
    openIDCacheRefreshAfterWriteSeconds: int = setting(
        64_800, "s", "An issuer's keys are fetched again after this time", ge=1
    )
    openIDCacheExpirationSeconds: int = setting(
        86_400, "s", "An issuer's keys are not used any more after this time", ge=1
    )
    openIDKeyIdCacheMissRefreshSeconds: int = setting(
        300, "s", "An issuer is asked for a key that is not known so often at most", ge=1
    )
    openIDJwksFile: str = setting(
        "",
        "",
        "The issuers' keys in a JWK set: file:///path or a path; then no issuer is asked",
        own=True,
    )
