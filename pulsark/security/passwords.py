"""Users and passwords of an htpasswd file.

A thread verifies passwords, because bcrypt takes 60 ms of processor time. Answers for unknown users
take as long as those for wrong passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from typing import TYPE_CHECKING

import bcrypt
from passlib.hash import apr_md5_crypt, sha256_crypt, sha512_crypt

from pulsark.errors import ConfigError
from pulsark.security.fair_worker import CrowdedError, FairWorker
from pulsark.security.keys import Kept
from pulsark.security.limits import (
    LOGINS_WAITING_MAX,
    PASSWORD_BYTES_MAX,
    PASSWORDS_REMEMBERED_MAX,
    PASSWORDS_REMEMBERED_SECONDS,
)
from pulsark.security.principal import Principal
from pulsark.security.provider import Credentials, LoginError, checked_role

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from pulsark.config.settings import Settings
    from pulsark.runtime import Runtime

_HASHES = {"$apr1$": apr_md5_crypt, "$5$": sha256_crypt, "$6$": sha512_crypt}
_BCRYPT = re.compile(r"\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}")
_BCRYPT_BYTES_MAX = 72


def _wrong() -> LoginError:
    return LoginError("password", "unknown user or wrong password")


def users_of(setting: str, data: bytes) -> dict[str, str]:
    """Hashes by user from the lines of an htpasswd file. Raises ``ConfigError``."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: not UTF-8") from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        user, colon, hashed = line.strip().partition(":")
        if not (user and colon):
            raise ConfigError(f"{setting}: line {number} is not user:hash")
        if user in users:
            raise ConfigError(f"{setting}: line {number} repeats a user")
        if not _is_known(hashed):
            raise ConfigError(
                f"{setting}: line {number} has an unsafe or unknown hash; "
                f"htpasswd -B FILE {user} makes a new one"
            )
        users[user] = hashed
    return users


def _is_known(hashed: str) -> bool:
    if hashed.startswith("$2"):
        return _BCRYPT.fullmatch(hashed) is not None
    for prefix, scheme in _HASHES.items():
        if hashed.startswith(prefix):
            try:
                return bool(scheme.from_string(hashed).checksum)
            except ValueError:
                return False
    return False


def fits(password: bytes, hashed: str) -> bool:
    """Whether a password matches a hash. Takes up to a tenth of a second."""
    try:
        if hashed.startswith("$2"):
            return len(password) <= _BCRYPT_BYTES_MAX and bcrypt.checkpw(password, hashed.encode())
        scheme = next(scheme for prefix, scheme in _HASHES.items() if hashed.startswith(prefix))
        return bool(scheme.verify(password, hashed))
    except ValueError:  # a NUL in the password, for example
        return False


class PasswordProvider:
    """Logs in the users of the file that ``basicAuthConf`` names."""

    name = "AuthenticationProviderBasic"
    method = "basic"
    scheme = "Basic"

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        if not settings.basicAuthConf:
            raise ConfigError(
                "basicAuthConf is empty, and authenticationProviders includes passwords: "
                "set it to an htpasswd file"
            )
        self._users = Kept(
            "basicAuthConf", settings.basicAuthConf, lambda data: users_of("basicAuthConf", data)
        )
        self.kept = (self._users,)
        self._runtime = runtime
        self._worker = FairWorker(runtime, "passwords", LOGINS_WAITING_MAX)
        self._remembered = Remembered()

    def log_in(self, credentials: Credentials) -> Principal | Awaitable[Principal]:
        """The user, if the password is right."""
        user, _, password = credentials.data.partition(b":")
        try:
            role = user.decode()
        except UnicodeDecodeError:
            raise LoginError("malformed", "the user is not UTF-8") from None
        if len(password) > PASSWORD_BYTES_MAX:
            raise LoginError("malformed", f"the password has more than {PASSWORD_BYTES_MAX} bytes")
        principal = Principal(checked_role(role), None, "basic", None, credentials.address)
        users = self._users.value
        hashed = users.get(role)
        now = self._runtime.clock.monotonic()
        if hashed is not None and self._remembered.knows(credentials.data, hashed, now):
            return principal
        return self._verify(principal, credentials.data, password, users)

    async def _verify(
        self, principal: Principal, data: bytes, password: bytes, users: Mapping[str, str]
    ) -> Principal:
        hashed = users.get(principal.role)
        # For an unknown user, verify against another user's hash, which takes as long.
        tried = hashed if hashed is not None else self._remembered.another(principal.role, users)
        if tried is None:
            raise _wrong()
        host = principal.address.rpartition(":")[0]
        try:
            is_right = await self._worker.run(host, lambda: fits(password, tried))
        except CrowdedError:
            raise LoginError("busy", "too many passwords wait to be verified") from None
        if hashed is None or not is_right:
            raise _wrong()
        self._remembered.add(data, hashed, self._runtime.clock.monotonic())
        return principal


class Remembered:
    """Recently verified passwords, as hashes with a key of this process."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._until: dict[bytes, float] = {}

    def knows(self, data: bytes, hashed: str, now: float) -> bool:
        """Whether these were verified recently, against the hash that is in the file now."""
        return self._until.get(self._mark(data, hashed), now) > now

    def add(self, data: bytes, hashed: str, now: float) -> None:
        """Remember verified credentials."""
        while len(self._until) >= PASSWORDS_REMEMBERED_MAX:
            del self._until[next(iter(self._until))]
        mark = self._mark(data, hashed)
        self._until.pop(mark, None)
        self._until[mark] = now + PASSWORDS_REMEMBERED_SECONDS

    def another(self, role: str, users: Mapping[str, str]) -> str | None:
        """Some user's hash, always the same one for a name; ``None`` if there are no users.

        If the file has hashes of several kinds, the time taken must not reveal which users exist.
        """
        if not users:
            return None
        number = int.from_bytes(hmac.digest(self._key, role.encode(), hashlib.sha256))
        return list(users.values())[number % len(users)]

    def _mark(self, data: bytes, hashed: str) -> bytes:
        return hmac.digest(self._key, hashed.encode() + b"\0" + data, hashlib.sha256)
