"""All cursors of a bundle, or of a part of it, at the head of a ledger."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.storage.cursor.records import pack, pack_snapshot_end

if TYPE_CHECKING:
    from collections.abc import Container

    from pulsark.runtime import Clock
    from pulsark.storage.cursor.bundle_cursors import CursorTable
    from pulsark.storage.cursor.log_ledger import CursorLedger

_BYTES_UNCONFIRMED = 1 << 20


async def write_snapshot(
    ledger: CursorLedger, table: CursorTable, clock: Clock, but_for: Container[str] = ()
) -> None:
    """Write it, and return when all of it is durable; ``but_for`` the topics with some ids."""
    unconfirmed = 0
    for entry in pack(table.records(but_for), clock.now_ms()):
        last = ledger.append([entry])
        ledger.snapshot_bytes += len(entry)
        unconfirmed += len(entry)
        if unconfirmed > _BYTES_UNCONFIRMED or ledger.error is not None:
            await ledger.confirmed(last)
            unconfirmed = 0
        else:
            await asyncio.sleep(0)
    end = pack_snapshot_end(table.next_cursor_id, clock.now_ms())
    await ledger.confirmed(ledger.append([end]))
