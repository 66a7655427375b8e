"""What the metadata stores on servers do alike: see ``MetadataStore``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.metadata.single_writes import SingleWrites
from pulsark.metadata.store import check_parent, split_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.counters import Counters
    from pulsark.metadata.server_marks import ServerMarks
    from pulsark.metadata.watches import Watches


class ServerStore(SingleWrites):
    """Marks, numbers and watches of one session. Who extends it makes them."""

    _marks: ServerMarks
    _counters: Counters
    _watches: Watches

    @property
    def mark(self) -> int:
        """As far as this process knows: what it has read is not newer."""
        return self._marks.mark

    def knows(self, mark: int) -> bool:
        return self._marks.knows(mark)

    def on_commit(self, listener: Callable[[int], None]) -> None:
        self._marks.listen(listener)

    async def next_id(self, path: str) -> int:
        split_path(path)
        return await self._counters.next(path)

    def watch(
        self, prefix: str, changed: Callable[[str], None], missed: Callable[[], None]
    ) -> Callable[[], None]:
        check_parent(prefix)
        return self._watches.add(prefix, changed, missed)
