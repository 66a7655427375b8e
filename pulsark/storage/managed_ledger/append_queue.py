"""Appends on their way: those that wait to be sent, and runs that wait to be confirmed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsark.storage.ledger.manager import LedgerWriter
    from pulsark.storage.managed_ledger.config import ManagedLedgerListener


class AppendQueue:
    """Tells the listener what became of appends, always in their order.

    ``entries`` and ``contexts`` wait to be sent; an append adds to both.
    """

    def __init__(self, listener: ManagedLedgerListener) -> None:
        self.entries: list[bytes] = []
        self.contexts: list[Any] = []
        self.scheduled = False
        """What waits will be sent in this turn of the loop."""
        self.listener = listener
        # Runs sent to the present writer: first entry id, entries, contexts.
        self._sent: deque[tuple[int, list[bytes], list[Any]]] = deque()

    def send(self, writer: LedgerWriter) -> None:
        """Send all that waits, as one run. If the writer raises, it still waits."""
        entries = self.entries
        self._sent.append((writer.append(entries), entries, self.contexts))
        self.entries, self.contexts = [], []

    def confirm(self, ledger_id: int, last_confirmed: int) -> None:
        """Everything sent up to this entry id is durable."""
        sent, listener = self._sent, self.listener
        while sent:
            first, entries, contexts = sent[0]
            count = last_confirmed - first + 1
            if count <= 0:
                return
            if count < len(entries):
                sent[0] = (first + count, entries[count:], contexts[count:])
                listener.entries_confirmed(ledger_id, first, entries[:count], contexts[:count])
                return
            sent.popleft()
            listener.entries_confirmed(ledger_id, first, entries, contexts)

    @property
    def pending(self) -> int:
        """Entries that wait to be sent or to be confirmed."""
        return len(self.entries) + sum(len(entries) for _, entries, _ in self._sent)

    @property
    def waits_for_answers(self) -> bool:
        """Whether something was sent and is not confirmed."""
        return bool(self._sent)

    def send_again(self) -> None:
        """What was sent and not confirmed does not exist: it is sent with what waits behind it."""
        entries = [entry for run in self._sent for entry in run[1]]
        contexts = [context for run in self._sent for context in run[2]]
        self._sent.clear()
        self.entries, self.contexts = entries + self.entries, contexts + self.contexts

    def fail(self, error: Exception) -> None:
        """Neither what was sent nor what waits will be confirmed."""
        contexts = [context for run in self._sent for context in run[2]]
        contexts += self.contexts
        self._sent.clear()
        self.entries, self.contexts = [], []
        if contexts:
            self.listener.append_failed(contexts, error)
