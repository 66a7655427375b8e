"""Subscribers to changes: the in-process half of ``MetadataStore.watch``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Changed = Callable[[str], None]
Missed = Callable[[], None]


class _Watch:
    """Runs its callbacks in turns of their own, on the loop that created it."""

    def __init__(self, changed: Changed, missed: Missed) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._missed = missed
        self.active = True

    def tell(self, path: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._run, path)

    def _run(self, path: str | None) -> None:
        if not self.active:
            return
        if path is None:
            self._missed()
        else:
            self._changed(path)


class Watches:
    """Callbacks by path prefix. The cost of a change is the depth of its path."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, list[_Watch]] = {}

    def add(self, prefix: str, changed: Changed, missed: Missed) -> Callable[[], None]:
        """Watch ``prefix`` and everything below it; returns a function that ends the watch."""
        watch = _Watch(changed, missed)

        def end() -> None:
            if watch.active:
                watch.active = False
                self._by_prefix[prefix].remove(watch)
                if not self._by_prefix[prefix]:
                    del self._by_prefix[prefix]

        self._by_prefix.setdefault(prefix, []).append(watch)
        return end

    def cover(self, path: str) -> bool:
        """Whether anybody watches a path."""
        while path not in self._by_prefix:
            if path in ("/", ""):
                return False
            path = path.rpartition("/")[0] or "/"
        return True

    def tell(self, path: str) -> None:
        """Call each watch whose prefix is ``path`` or an ancestor of it."""
        if not self._by_prefix:
            return
        prefix = path
        while True:
            for watch in tuple(self._by_prefix.get(prefix, ())):
                watch.tell(path)
            if prefix == "/":
                return
            prefix = prefix.rpartition("/")[0] or "/"

    def tell_missed(self) -> None:
        """Tell all watches that changes may have been lost."""
        for watches in tuple(self._by_prefix.values()):
            for watch in tuple(watches):
                watch.tell(None)
