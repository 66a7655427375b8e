"""Transactions of one session: each compares that etcd is the one that the session began with.

The history of the store is part of each comparison. An etcd that has lost its data, or is another
one, has none, so nothing is read from it as absent. A write also compares that the session lives:
nothing is written for a process that others take for dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import MetadataError, MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.gateway import NOT_FOUND, RefusedError
from pulsark.metadata.etcd.messages import TxnAnswer, txn_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.metadata.etcd.gateway import Gateway
    from pulsark.metadata.etcd.layout import Layout
    from pulsark.metadata.etcd.marks import Marks
    from pulsark.metadata.etcd.messages import Json


class Transactions:
    """See above."""

    def __init__(
        self,
        gateway: Gateway,
        layout: Layout,
        marks: Marks,
        session_key: bytes,
        end: Callable[[str], None],
    ) -> None:
        """``end(reason)`` is called when the session is found to be over."""
        self._gateway = gateway
        self._layout = layout
        self._marks = marks
        self._session_key = session_key
        self._end = end

    async def read(self, operations: Sequence[Json], deadline: float) -> TxnAnswer:
        """What the operations find, all at one revision. ``MetadataError``."""
        compare = [messages.is_at(self._layout.history, self._marks.changed)]
        body = messages.transaction(
            compare, operations, [messages.get(self._layout.history), *operations]
        )
        known = self._marks.changed, self._marks.revision
        try:
            answer = txn_answer(await self._gateway.read("kv/txn", body, deadline))
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataError(f"etcd's answer cannot be read: {error}") from error
        if not answer.succeeded:
            self._learn(answer.found[0], answer.revision, known)
            return TxnAnswer(True, answer.revision, answer.found[1:])
        self._reached(answer.revision, known[1])
        return answer

    async def write(
        self,
        compares: Sequence[Json],
        operations: Sequence[Json],
        otherwise: Sequence[Json],
        deadline: float,
    ) -> TxnAnswer:
        """Make all operations if all comparisons hold, else find what ``otherwise`` reads.

        The errors are those of ``MetadataStore.put``.
        """
        own = [self._layout.history, self._session_key]
        body = messages.transaction(
            [
                messages.is_at(own[0], self._marks.changed),
                messages.is_there(own[1]),
                *compares,
            ],
            operations,
            [*map(messages.get, own), *otherwise],
        )
        known = self._marks.changed, self._marks.revision
        try:
            answer = txn_answer(await self._gateway.write("kv/txn", body, deadline))
        except RefusedError as error:
            if error.code == NOT_FOUND:
                self._end("etcd has ended it")
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise OutcomeUnknownError(f"etcd's answer cannot be read: {error}") from error
        if answer.succeeded:
            self._marks.reached(answer.revision)
            return answer
        self._learn(answer.found[0], answer.revision, known)
        if not answer.found[1]:
            self._end("etcd has ended it")
            raise MetadataRefusedError("the session with etcd is over; nothing was written")
        return TxnAnswer(False, answer.revision, answer.found[2:])

    def _learn(
        self, found: Sequence[messages.KeyValue], revision: int, known: tuple[int, int]
    ) -> None:
        """``known``: the revisions of the history, and of all, when it was asked for."""
        if not found:
            self._lost("it has no metadata store any more")
        if found[0].changed < known[0]:
            self._lost("its history is an older one")
        self._marks.learn(found[0].value, found[0].changed)
        self._reached(revision, known[1])

    def _reached(self, revision: int, known: int) -> None:
        if revision < known:
            self._lost("its data are older than what it had confirmed")
        self._marks.reached(revision)

    def _lost(self, problem: str) -> None:
        self._end(f"etcd is another one, or has lost its data: {problem}")
        raise MetadataRefusedError(f"etcd is not used any more: {problem}")
