"""The metadata record that says which ledger holds the cursors of a bundle.

``/cursors/<tenant>/<namespace>/<bundle>``, JSON; `docs/formats/cursor.md` has the fields. Each
owner of the bundle begins with a compare-and-set that raises ``epoch``: from then on a
predecessor can no longer point the record to a ledger of its own, and fencing the ledger that
it does point to stops the predecessor altogether.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

from pulsark.errors import (
    BadVersionError,
    CorruptMetadataError,
    LedgerFencedError,
    MetadataError,
    OwnershipLostError,
)
from pulsark.metadata.paths import cursors_path
from pulsark.metadata.store import ABSENT, MetadataStore

FORMAT_VERSION = 1
_ATTEMPTS = 10
_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class FormerLedger:
    """A ledger that held the cursors from one time to another, and is kept as their history."""

    ledger_id: int
    since_ms: int
    until_ms: int
    size: int
    """Bytes of its entries."""
    borrowed: bool = False
    """Another bundle lists it, too, and deletes it: both are parts of a bundle that was split."""

    def as_json(self) -> dict[str, Any]:
        """The stored form; ``borrowed`` is there only if it is so."""
        form: dict[str, Any] = {
            "ledgerId": self.ledger_id,
            "since": self.since_ms,
            "until": self.until_ms,
            "size": self.size,
        }
        return {**form, "borrowed": True} if self.borrowed else form


@dataclass(frozen=True, slots=True)
class BundleState:
    """The value of the record.

    ``ledger_id`` holds the cursors (``None``: there never was one) since ``since_ms``;
    ``history`` are those that did before, oldest first; ``to_delete`` are ledgers that are to be
    deleted: one being filled that is not yet in use, and ones out of use.
    """

    epoch: int = 0
    ledger_id: int | None = None
    to_delete: tuple[int, ...] = ()
    since_ms: int = 0
    history: tuple[FormerLedger, ...] = ()

    @property
    def own_ledgers(self) -> set[int]:
        """All that nobody deletes but who has this record."""
        history = {former.ledger_id for former in self.history if not former.borrowed}
        named = set() if self.ledger_id is None else {self.ledger_id}
        return history | named | set(self.to_delete)

    def to_json(self) -> bytes:
        """The stored form."""
        return json.dumps(
            {
                "version": FORMAT_VERSION,
                "epoch": self.epoch,
                "ledgerId": self.ledger_id,
                "doomed": self.to_delete,
                "since": self.since_ms,
                "history": [former.as_json() for former in self.history],
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, value: bytes) -> BundleState:
        """Parse a stored value; ``CorruptMetadataError`` if it is not one this program knows."""
        try:
            fields = json.loads(value)
            if fields["version"] != FORMAT_VERSION:
                raise CorruptMetadataError(
                    f"Cursor record has format version {fields['version']}, "
                    f"this program knows {FORMAT_VERSION}"
                )
            return cls(
                fields["epoch"],
                fields["ledgerId"],
                tuple(fields["doomed"]),
                fields.get("since", 0),
                tuple(
                    FormerLedger(
                        f["ledgerId"],
                        f["since"],
                        f["until"],
                        f["size"],
                        f.get("borrowed", False),
                    )
                    for f in fields.get("history", ())
                ),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptMetadataError(
                f"Cursor record cannot be parsed: {value[:200]!r}"
            ) from error


class BundleRecord:
    """The record as its owner changes it. One change at a time."""

    def __init__(self, metadata: MetadataStore, bundle: str) -> None:
        self._metadata = metadata
        self._bundle = bundle
        self.path = cursors_path(bundle)
        self.state = BundleState()
        self._version = ABSENT
        self._attempted: set[bytes] = set()
        """Values whose writing failed with an unknown outcome."""

    async def claim(self) -> None:
        """Become the owner. The last one to claim wins."""
        for _ in range(_ATTEMPTS):
            current = await self._metadata.get(self.path)
            version = ABSENT if current is None else current.version
            state = BundleState() if current is None else BundleState.from_json(current.value)
            state = replace(state, epoch=state.epoch + 1)
            try:
                self._version = await self._metadata.put(self.path, state.to_json(), version)
            except BadVersionError:
                continue
            self.state = state
            return
        raise LedgerFencedError(f"The cursors of bundle {self._bundle} are claimed by others")

    async def update(self, state: BundleState) -> None:
        """Change the record durably, from what ``self.state`` is.

        ``LedgerFencedError``: another owner claimed it. ``MetadataError``: the outcome is
        unknown even after retries; the next update finds it out.
        """
        value = state.to_json()
        for attempt in range(_ATTEMPTS):
            try:
                version = await self._put(value)
            except (BadVersionError, OwnershipLostError) as error:
                raise LedgerFencedError(
                    f"The cursors of bundle {self._bundle} have another owner"
                ) from error
            except MetadataError:
                self._attempted.add(value)
                if attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._version = version
            self._attempted.clear()
            self.state = state
            return

    async def _put(self, value: bytes) -> int:
        try:
            return await self._metadata.put(self.path, value, self._version)
        except BadVersionError:
            current = await self._metadata.get(self.path)
            ours = current is not None and current.value in self._attempted
            if current is None or not ours:
                raise
            if current.value == value:
                return current.version
            return await self._metadata.put(self.path, value, current.version)
