"""What an operator is told of a topic that cannot be loaded because something of it is damaged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pulsark.errors import (
    CorruptEntryError,
    CorruptMetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OlderMetadataError,
    UnreadableTableError,
)

if TYPE_CHECKING:
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

SAID_SECONDS: Final = 60.0
"""Time until another warning about the same topic."""

_DOCTOR: Final = "Stop this process: `pulsark doctor --data-dir DIR` says"


def advice(name: TopicName, error: BaseException, *, of_cluster: bool = False) -> str | None:
    """What can be done; ``None`` if nothing is damaged, so that trying again may help.

    ``of_cluster``: nothing is stored by this process, which need not be stopped.
    """
    match error:
        case UnreadableTableError():
            repair = f"pulsark tables repair {name.base}"
            return f"Bring the storage root back that has it, or run `{repair}`"
        case CorruptEntryError():
            if of_cluster:
                return (
                    "Bring the bookies back that have copies: `bin/bookkeeper shell "
                    "ledgermetadata -ledgerid ID` names them"
                )
            return f"{_DOCTOR} what is damaged and what can be done"
        case NoSuchLedgerError() | NoSuchEntryError():
            if of_cluster:
                return (
                    "If the metadata store, or the disks of bookies, were replaced by older or "
                    "empty ones, put the newest back"
                )
            return (
                f"{_DOCTOR} what is missing. If a data directory or the metadata store was "
                "replaced by an older one, put the newest back"
            )
        case CorruptMetadataError():
            if of_cluster:
                return (
                    "If a newer release has written it, install that one; else put a backup of "
                    "the metadata store back"
                )
            return f"{_DOCTOR} what else is damaged; then put a backup of the metadata store back"
        case OlderMetadataError():
            return "Everything else goes on"
    return None


class DamageReports:
    """Says so in one line, once a minute of each topic, however often clients come again."""

    def __init__(self, clock: Clock) -> None:
        self.of_cluster = False
        self._clock = clock
        self._said: dict[TopicName, float] = {}

    def say(self, name: TopicName, error: BaseException) -> None:
        """Loading a topic has failed."""
        what_to_do = advice(name, error, of_cluster=self.of_cluster)
        if what_to_do is None:
            return
        now = self._clock.monotonic()
        self._said = {key: at for key, at in self._said.items() if now < at + SAID_SECONDS}
        if name not in self._said:
            self._said[name] = now
            log.warning("%s cannot be loaded: %s. %s", name, error, what_to_do)
