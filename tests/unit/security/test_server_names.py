"""A name that is none leaves no stack trace; everything else that cannot be raised does."""

from __future__ import annotations

import gc
import ssl
import sys
from collections.abc import Callable

import pytest

from pulsark.security.server_names import tell_nobody_of_wrong_names


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the hook before this one was told."""
    found: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    tell_nobody_of_wrong_names()
    return found


def handshake(name: bytes, callback: Callable[..., None]) -> None:
    """That of a client which asks for ``name`` (of nine bytes)."""
    client, incoming, outgoing = ssl.create_default_context(), ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = callback
    incoming.write(outgoing.read().replace(b"localhost", name))
    with pytest.raises(ssl.SSLError):
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()


def test_a_name_that_is_none_is_told_nobody(told: list[object]) -> None:
    asked: list[object] = []
    handshake(b"\xff" * 9, lambda *given: asked.append(given))
    assert told == []
    assert asked == []


def test_other_defects_are(told: list[object]) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError

    Broken()
    gc.collect()
    handshake(b"localhost", lambda *_: b"\xff".decode("ascii"))  # type: ignore[arg-type,return-value]
    assert len(told) == 2


def test_one_hook_is_enough(told: list[object]) -> None:
    before = sys.unraisablehook
    tell_nobody_of_wrong_names()
    assert sys.unraisablehook is before
