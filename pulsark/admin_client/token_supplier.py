"""Functions of ours that the official client calls, and how Python's end waits for them.

The client's threads are of C++. One of them lets go of the function some time after the client was
closed, and needs Python's lock for that. If Python ends meanwhile, the thread is ended there, and
the process aborts ("terminate called without an active exception").
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUND_SECONDS: Final = 0.01
_ROUNDS_MAX: Final = 500
"""A client that nobody has closed keeps its function: its process ends all the same."""

# Without callbacks: the thread that lets go must run no code of Python's at that moment.
_given: list[weakref.ref[TokenSupplier]] = []


class TokenSupplier:
    """Gives the client its token, anew for each login."""

    __slots__ = ("__weakref__", "_token")

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token
        if not _given:
            atexit.register(wait_until_let_go)
        _given[:] = [*(each for each in _given if each() is not None), weakref.ref(self)]

    def __call__(self) -> str:
        return self._token()


def wait_until_let_go(rounds: int = _ROUNDS_MAX) -> bool:
    """Whether no client has any of the functions, after some time for those that still have."""
    pause = threading.Event()
    for _ in range(rounds):
        if all(each() is None for each in _given):
            return True
        pause.wait(_ROUND_SECONDS)
    return False
