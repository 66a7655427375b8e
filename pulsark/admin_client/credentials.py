"""How a program of ours logs in to a broker, and whose certificates it trusts.

The words are those of Pulsar's clients: the class name of an authentication plugin, and its
parameters. A broker's certificate and host name are always verified.
"""

from __future__ import annotations

import base64
import json
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pulsark.admin_client.token_supplier import TokenSupplier
from pulsark.errors import ConfigError
from pulsark.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

AUTH_PLUGIN = "PULSARK_AUTH_PLUGIN"
AUTH_PARAMS = "PULSARK_AUTH_PARAMS"
TOKEN_FILE = "PULSARK_TOKEN_FILE"
TRUST_CERTS = "PULSARK_TLS_TRUST_CERTS"

_JAVA = "org.apache.pulsar.client.impl.auth."
_PLUGINS = {
    name: short
    for short in ("token", "basic", "tls")
    for name in (
        short,
        f"Authentication{short.title()}",
        f"pulsar.Authentication{short.title()}",
        f"{_JAVA}Authentication{short.title()}",
    )
}
_NONE = ("", "none", f"{_JAVA}AuthenticationDisabled")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A way to log in. Secrets are not in its ``repr``, and files are read at each use.

    ``method`` is ``token``, ``basic``, ``tls`` or, without a login, ``none``. ``trust_path`` is a
    PEM file of CAs; empty: those of this machine.
    """

    method: str = "none"
    params: Mapping[str, str] = field(default_factory=dict, repr=False)
    trust_path: str = ""

    @classmethod
    def of(cls, plugin: str = "", params: str = "", trust_path: str = "") -> Credentials:
        """By the name of a plugin and its parameters. ``ConfigError`` says what is wrong."""
        if plugin.strip() in _NONE:
            return cls(trust_path=trust_path)
        method = _PLUGINS.get(plugin.strip())
        if method is None:
            raise ConfigError(
                f"authPluginClassName={plugin}: {_JAVA}AuthenticationToken, AuthenticationBasic "
                "and AuthenticationTls are known, or token, basic and tls in short"
            )
        read = {"token": _token_params, "basic": _basic_params, "tls": _tls_params}[method]
        return cls(method, read(params.strip()), trust_path)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Credentials:
        """What the variables of this module say."""
        trust_path = environment.get(TRUST_CERTS, "")
        if path := environment.get(TOKEN_FILE, ""):
            return cls("token", {"file": path}, trust_path)
        return cls.of(
            environment.get(AUTH_PLUGIN, ""), environment.get(AUTH_PARAMS, ""), trust_path
        )

    def headers(self) -> dict[str, str]:
        """What each HTTP request and each Flight call carries. ``ConfigError`` for a lost file."""
        if self.method == "token":
            return {
                "X-Pulsar-Auth-Method-Name": "token",
                "Authorization": f"Bearer {self._token()}",
            }
        if self.method == "basic":
            pair = f"{self.params['userId']}:{self.params['password']}".encode()
            return {
                "X-Pulsar-Auth-Method-Name": "basic",
                "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            }
        return {"X-Pulsar-Auth-Method-Name": "tls"} if self.method == "tls" else {}

    def why_refused(self, advice: str) -> str:
        """Say why a broker may have refused this login, without showing any secret.

        ``advice``: what to set if there is no login.
        """
        if self.method == "none":
            return f"Authentication required, and no login was sent: {advice}"
        if self.method != "token":
            what = "user name and password" if self.method == "basic" else "client certificate"
            return f"the broker does not accept this {what}"
        claims = _claims(self._token())
        if claims is None:
            return "the broker does not accept this token, which is not a JSON Web Token"
        expires = claims.get("exp")
        if isinstance(expires, int | float) and 0 < expires < SystemClock().now_ms() / 1000:
            return f"the token expired at {datetime.fromtimestamp(expires, UTC):%Y-%m-%d %H:%M:%S}Z"
        return (
            "the broker does not accept this token: it is signed with another key, revoked, or "
            "meant for others"
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For connections over TLS: it verifies the broker, and has the client's certificate."""
        try:
            context = ssl.create_default_context(cafile=self.trust_path or None)
        except OSError as error:
            raise ConfigError(
                f"tlsTrustCertsFilePath={self.trust_path}: {error.strerror or error}"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.method == "tls":
            files = self.params["tlsCertFile"], self.params["tlsKeyFile"]
            try:
                context.load_cert_chain(*files)
            except OSError as error:
                raise ConfigError(
                    f"authParams: {files[0]} and {files[1]} cannot be used: "
                    f"{error.strerror or error}"
                ) from error
        return context

    def for_client(self, pulsar: Any) -> dict[str, Any]:
        """Arguments for the official client, whose module is ``pulsar``."""
        found: dict[str, Any] = {"tls_validate_hostname": True}
        if self.trust_path:
            found["tls_trust_certs_file_path"] = self.trust_path
        if self.method == "token":
            text = self.params.get("token")
            found["authentication"] = pulsar.AuthenticationToken(text or TokenSupplier(self._token))
        elif self.method == "basic":
            found["authentication"] = pulsar.AuthenticationBasic(
                self.params["userId"], self.params["password"]
            )
        elif self.method == "tls":
            found["authentication"] = pulsar.AuthenticationTLS(
                self.params["tlsCertFile"], self.params["tlsKeyFile"]
            )
        return found

    def for_flight(self) -> dict[str, bytes]:
        """Arguments for a Flight client over TLS. ``ConfigError`` for a lost file."""
        found: dict[str, bytes] = {}
        if self.trust_path:
            found["tls_root_certs"] = _content("tlsTrustCertsFilePath", self.trust_path)
        if self.method == "tls":
            found["cert_chain"] = _content("authParams", self.params["tlsCertFile"])
            found["private_key"] = _content("authParams", self.params["tlsKeyFile"])
        return found

    def _token(self) -> str:
        if "token" in self.params:
            return self.params["token"].strip()
        return _read(self.params["file"])


def _claims(token: str) -> Mapping[str, Any] | None:
    """What a token says, unverified; None if it is no JSON Web Token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _token_params(text: str) -> dict[str, str]:
    if text.startswith("token:"):
        found = {"token": text.removeprefix("token:").strip()}
    elif text.startswith("file:"):
        found = {"file": unquote(urlsplit(text).path)}
    elif text.startswith("{"):
        found = _json(text, ("token",))
    else:
        found = {"token": text}
    if not all(found.values()):
        raise ConfigError("authParams: write token:TOKEN or file:///PATH for a token")
    if "token" in found and not found["token"].isascii():
        raise ConfigError("authParams: a token has ASCII characters only")
    return found


def _basic_params(text: str) -> dict[str, str]:
    return _json(text, ("userId", "password"))


def _tls_params(text: str) -> dict[str, str]:
    names = ("tlsCertFile", "tlsKeyFile")
    if text.startswith("{"):
        return _json(text, names)
    pairs = (part.partition(":") for part in text.split(","))
    found = {name.strip(): path.strip() for name, _, path in pairs}
    if not all(found.get(name) for name in names):
        raise ConfigError("authParams: write tlsCertFile:PATH,tlsKeyFile:PATH for a certificate")
    return found


def _json(text: str, names: tuple[str, ...]) -> dict[str, str]:
    """The named texts of a JSON object. Errors do not repeat what was written: it is secret."""
    example = json.dumps(dict.fromkeys(names, "..."))
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), str) and found[name] for name in names
    ):
        raise ConfigError(f"authParams: write {example}")
    return {name: found[name] for name in names}


def _content(key: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"authParams: the token file {path} cannot be read: "
            f"{getattr(error, 'strerror', None) or 'it is not text'}"
        ) from error
    if not token:
        raise ConfigError(f"authParams: the token file {path} is empty")
    return token
