"""Subscribers to changes: the in-process half of ``MetadataStore.watch``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Changed = Callable[[str], None]


class Watches:
    """Callbacks by path prefix. Telling of a change costs its path's depth, not their number."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, list[Changed]] = {}

    def add(self, prefix: str, changed: Changed) -> Callable[[], None]:
        """Begin a watch of ``prefix`` and everything below; returns what ends it.

        The callback runs in a turn of its own of the loop that is running now.
        """
        loop = asyncio.get_running_loop()
        active = True

        def run(path: str) -> None:
            if active:
                changed(path)

        def call(path: str) -> None:
            if not loop.is_closed():
                loop.call_soon(run, path)

        def end() -> None:
            nonlocal active
            if active:
                active = False
                self._by_prefix[prefix].remove(call)
                if not self._by_prefix[prefix]:
                    del self._by_prefix[prefix]

        self._by_prefix.setdefault(prefix, []).append(call)
        return end

    def tell(self, path: str) -> None:
        """Schedule every callback whose prefix is ``path`` or above it."""
        if not self._by_prefix:
            return
        prefix = path
        while True:
            for call in tuple(self._by_prefix.get(prefix, ())):
                call(path)
            if prefix == "/":
                return
            prefix = prefix.rpartition("/")[0] or "/"
