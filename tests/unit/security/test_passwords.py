"""Users and passwords."""

from __future__ import annotations

import asyncio
import os
from inspect import isawaitable
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from passlib.hash import apr_md5_crypt, des_crypt, sha256_crypt, sha512_crypt

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.runtime import Runtime
from pulsark.security import passwords
from pulsark.security.limits import LOGINS_WAITING_MAX, PASSWORDS_REMEMBERED_SECONDS
from pulsark.security.passwords import PasswordProvider, Remembered, fits
from pulsark.security.principal import Principal
from pulsark.security.provider import Credentials, LoginError
from tests.support.logging_in import InlineWorker, SetClock, inline, kind_of, runtime_of

PASSWORD = "123456"
HASHES = {
    "apr1": apr_md5_crypt.hash(PASSWORD),
    "sha256": sha256_crypt.using(rounds=1000).hash(PASSWORD),
    "sha512": sha512_crypt.using(rounds=1000).hash(PASSWORD),
    "bcrypt": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode().replace("$2b", "$2y"),
}
FILE = "".join(f"{user}:{hashed}\n" for user, hashed in HASHES.items()).encode()


def provider(data: bytes = FILE, clock: SetClock | None = None) -> PasswordProvider:
    settings = Settings(basicAuthConf=inline(data))
    return PasswordProvider(settings, runtime_of(clock or SetClock()))


def log_in(found: PasswordProvider, data: bytes) -> Principal:
    async def ask() -> Principal:
        result = found.log_in(Credentials("basic", data, "10.0.0.1:9"))
        return await result if isawaitable(result) else result

    return asyncio.run(ask())


@pytest.mark.parametrize("user", HASHES)
def test_each_kind_of_hash(user: str) -> None:
    found = provider()
    shown = f"{user}:{PASSWORD}".encode()
    assert log_in(found, shown) == Principal(user, None, "basic", None, "10.0.0.1:9")
    with pytest.raises(LoginError, match="unknown user or wrong password"):
        log_in(found, shown + b"7")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"nobody:123456", "password"),
        (b"apr1", "password"),
        (b"apr1:", "password"),
        (b"apr1:1234\x00", "password"),
        (b"apr1:" + b"1" * 257, "malformed"),
        (b"bcrypt:" + b"1" * 73, "password"),
        (b":123456", "role"),
        (b"", "role"),
        (b"a\x01b:123456", "role"),
        (b"\xff:123456", "malformed"),
    ],
)
def test_who_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(LoginError) as caught:
        log_in(provider(), data)
    assert caught.value.reason == why


def test_a_password_may_have_a_colon() -> None:
    hashed = apr_md5_crypt.hash("a:b")
    assert log_in(provider(f"x:{hashed}".encode()), b"x:a:b").role == "x"


def test_nobody_is_in_an_empty_file() -> None:
    with pytest.raises(LoginError):
        log_in(provider(b"\n"), b"apr1:123456")


def test_of_a_user_who_is_not_there_as_much_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(password: bytes, hashed: str) -> bool:
        tried.append((password, hashed))
        return fits(password, hashed)

    monkeypatch.setattr(passwords, "fits", counted)
    found = provider(f"apr1:{HASHES['apr1']}".encode())
    for user in ("nobody", "apr1"):
        with pytest.raises(LoginError):
            log_in(found, f"{user}:wrong".encode())
    # Not even the password of the user whose hash is tried lets anybody else in.
    with pytest.raises(LoginError):
        log_in(found, b"nobody:123456")
    assert [hashed for _, hashed in tried] == [HASHES["apr1"]] * 3


def test_those_who_are_not_there_take_the_times_of_all_kinds_of_hashes() -> None:
    users, remembered = {f"u{n}": f"hash {n}" for n in range(3)}, Remembered()
    tried = {name: remembered.another(name, users) for name in map(str, range(100))}
    assert set(tried.values()) == set(users.values())
    assert all(remembered.another(name, users) == hashed for name, hashed in tried.items())


def test_a_password_that_was_right_is_not_hashed_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SetClock()
    found = provider(clock=clock)
    log_in(found, b"bcrypt:123456")
    monkeypatch.setattr(passwords, "fits", lambda password, hashed: False)
    assert log_in(found, b"bcrypt:123456").role == "bcrypt"
    clock.ms += int(PASSWORDS_REMEMBERED_SECONDS * 1000)
    with pytest.raises(LoginError):
        log_in(found, b"bcrypt:123456")


def test_a_password_that_was_changed_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"a:{HASHES['apr1']}")
    os.utime(file, ns=(1, 1))
    found = PasswordProvider(Settings(basicAuthConf=str(file)), runtime_of(SetClock()))
    assert log_in(found, b"a:123456").role == "a"
    file.write_text(f"a:{apr_md5_crypt.hash('other')}")
    os.utime(file, ns=(2, 2))
    with pytest.raises(LoginError):
        log_in(found, b"a:123456")
    assert log_in(found, b"a:other").role == "a"


def test_few_passwords_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "PASSWORDS_REMEMBERED_MAX", 2)
    found = Remembered()
    for user in (b"a", b"b", b"a", b"c"):
        found.add(user, "hash", 0.0)
    assert [found.knows(user, "hash", 1.0) for user in (b"a", b"b", b"c")] == [True, False, True]
    assert not found.knows(b"a", "another", 1.0)


class NeverWorker(InlineWorker):
    """Is busy for good."""

    def submit(self, job: Any, done: Any) -> None:
        """Does not come to it."""


def test_passwords_wait_for_their_turn_up_to_a_limit() -> None:
    found = PasswordProvider(
        Settings(basicAuthConf=inline(FILE)), Runtime(clock=SetClock(), new_worker=NeverWorker)
    )
    shown = Credentials("basic", b"bcrypt:123456")

    async def ask() -> None:
        async def one() -> None:
            result = found.log_in(shown)
            assert isawaitable(result)
            await result

        # One is being verified, and the others wait.
        waiting = [asyncio.ensure_future(one()) for _ in range(LOGINS_WAITING_MAX + 1)]
        await asyncio.sleep(0)
        with pytest.raises(LoginError, match="too many"):
            await one()
        waiting[-1].cancel()
        await asyncio.wait(waiting[-1:])
        last = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        assert not last.done()
        for each in (*waiting, last):
            each.cancel()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"admin", "line 1 is not user:hash"),
        (b"# users\n", "line 1 is not user:hash"),
        (b"\n:hash\n", "line 2 is not user:hash"),
        (
            b"a:" + HASHES["apr1"].encode() + b"\na:" + HASHES["apr1"].encode(),
            "line 2 repeats a user",
        ),
        (b"admin:plain", "line 1 has an unsafe or unknown hash; htpasswd -B FILE admin"),
        (b"admin:" + des_crypt.hash("x").encode(), "unsafe or unknown hash"),
        (b"admin:$apr1$abc", "unsafe or unknown hash"),
        (b"admin:$6$abc$short", "unsafe or unknown hash"),
        (b"admin:$2y$04$short", "unsafe or unknown hash"),
        (b"\xff:x", "not UTF-8"),
    ],
    ids=kind_of,
)
def test_a_bad_file_stops_the_start(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        provider(data)
    assert "plain" not in str(caught.value)


def test_a_file_is_needed() -> None:
    with pytest.raises(ConfigError, match="basicAuthConf is empty"):
        PasswordProvider(Settings(), runtime_of(SetClock()))
