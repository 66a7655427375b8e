"""The cursors of a bundle become those of its parts.

Each part gets a ledger of its own, with a snapshot of its cursors, while the whole bundle has its
ledger still. Then one commit, which is the caller's, deletes the record of the whole and makes
those of the parts. A crash before it leaves ledgers that the whole's record lists as ones to
delete; after it, nothing is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.metadata.changes import Check, Delete, Put
from pulsark.metadata.paths import cursors_path
from pulsark.metadata.store import ABSENT
from pulsark.storage.cursor.bundle_record import BundleRecord, BundleState, FormerLedger
from pulsark.storage.cursor.log_ledger import CursorLedger
from pulsark.storage.cursor.snapshot import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pulsark.metadata.changes import Change
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.storage.cursor.bundle_cursors import CursorTable
    from pulsark.storage.cursor.log_writer import CursorLogConfig
    from pulsark.storage.ledger.manager import LedgerManager


@dataclass(frozen=True, slots=True)
class Part:
    """A bundle that is to be."""

    bundle: str
    topics_elsewhere: Collection[str]
    """Ids of topics that are in other parts. A topic that nobody knows is in each part: it may be
    anywhere, and where it is not its cursors are of no use, and do no harm."""


@dataclass(frozen=True, slots=True)
class DividedCursors:
    """What was written for the parts of a bundle, before that counts."""

    bundle: str
    ledgers: Sequence[tuple[str, int | None]]
    """The parts with the ledger of each; ``None``: there are no cursors."""
    size: int
    """Bytes in the ledger of the whole."""

    async def changes(
        self, metadata: MetadataStore, config: CursorLogConfig, runtime: Runtime
    ) -> list[Change]:
        """What makes it count, from what the records are now; to be committed at once.

        The first part takes over what the whole had to delete, and its history. The others
        only read that, for as long as it is there.
        """
        now_ms = runtime.clock.now_ms()
        path = cursors_path(self.bundle)
        found = await metadata.get(path)
        whole = BundleState() if found is None else BundleState.from_json(found.value)
        former = whole.history
        if whole.ledger_id is not None and whole.since_ms:
            former += (FormerLedger(whole.ledger_id, whole.since_ms, now_ms, self.size),)
        history = config.history.kept(former, runtime.sure_clock.now_ms())
        new = {ledger_id for _, ledger_id in self.ledgers}
        useless = whole.own_ledgers - new - {each.ledger_id for each in history}
        changes: list[Change] = [
            Check(path, ABSENT) if found is None else Delete(path, found.version)
        ]
        for bundle, ledger_id in self.ledgers:
            path = cursors_path(bundle)
            found = await metadata.get(path)
            # One of this name may have been in a namespace of this name, long ago.
            before = BundleState() if found is None else BundleState.from_json(found.value)
            state = BundleState(
                before.epoch + 1,
                ledger_id,
                tuple(sorted(useless | before.own_ledgers)),
                0 if ledger_id is None else now_ms,
                history,
            )
            changes.append(Put(path, state.to_json(), ABSENT if found is None else found.version))
            useless = set()
            history = tuple(replace(each, borrowed=True) for each in history)
        return changes


async def divide(
    bundle: str,
    table: CursorTable,
    size: int,
    parts: Sequence[Part],
    manager: LedgerManager,
    metadata: MetadataStore,
    config: CursorLogConfig,
    runtime: Runtime,
) -> DividedCursors:
    """Write the cursors of each part, which nobody changes any more. ``StorageError``."""
    if await metadata.get(cursors_path(bundle)) is None:
        return DividedCursors(bundle, [(part.bundle, None) for part in parts], 0)
    ledgers = []
    for part in parts:
        ledger = CursorLedger(lambda _: None)
        ledger.writer = await manager.create(config.of_ledger(cursors_path(part.bundle)), ledger)
        ledgers.append(ledger)
    ids = [ledger.writer.ledger_id for ledger in ledgers]
    record = BundleRecord(metadata, bundle)
    await record.claim()
    doomed = sorted({*record.state.to_delete, *ids})
    await record.update(replace(record.state, to_delete=tuple(doomed)))
    for part, ledger in zip(parts, ledgers, strict=True):
        await write_snapshot(ledger, table, runtime.clock, part.topics_elsewhere)
        await ledger.writer.close()
    return DividedCursors(
        bundle, list(zip((part.bundle for part in parts), ids, strict=True)), size
    )
