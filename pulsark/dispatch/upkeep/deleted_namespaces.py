"""What deleted namespaces leave: claims of their bundles, how often those were claimed, cursors.

Nobody deletes that with the namespace, because each broker has to give up what it has first, and it
hurts nobody. So each broker looks now and then whether it has bundles of namespaces that are gone.
The leader deletes the records of those that nobody has. One commit checks that there is still no
such namespace and no owner: a claim that comes at the same moment is made, or the deletion.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.topics.bundles import namespace_of
from pulsark.errors import BadVersionError, MetadataError
from pulsark.metadata.changes import Check, Delete, Put
from pulsark.metadata.pages import names_below
from pulsark.metadata.paths import (
    BUNDLE_EPOCHS,
    CURSORS,
    bundle_epoch_path,
    bundle_owner_path,
    cursors_path,
    policies_path,
    removed_ledger_path,
)
from pulsark.metadata.store import ABSENT, ANY_VERSION
from pulsark.metadata.two_stores import TwoStoresError
from pulsark.storage.cursor.bundle_record import BundleState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.dispatch.topics.bundle_release import BundleRelease
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.upkeep.share import Share
    from pulsark.metadata.changes import Change
    from pulsark.metadata.store import MetadataStore, Versioned

log = logging.getLogger(__name__)

LEDGERS_A_COMMIT: Final = 100
"""Ledgers of cursors that one commit marks as removed."""


class DeletedNamespaces:
    """One for a broker."""

    def __init__(
        self,
        metadata: MetadataStore,
        ownership: Ownership,
        release: BundleRelease,
        share: Share,
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._release = release
        self._share = share

    async def look(self) -> None:
        """One round."""
        for tree in (BUNDLE_EPOCHS, CURSORS):
            for tenant in await self._metadata.children(tree):
                async for namespace in self._gone(tree, tenant):
                    await self._give_up(namespace)
                    if self._share.leads:
                        for bundle in await self._metadata.children(f"{tree}/{namespace}"):
                            await self._forget(f"{namespace}/{bundle}")

    async def _gone(self, tree: str, tenant: str) -> AsyncIterator[str]:
        """Namespaces of a tenant of which something is left."""
        known = {name async for name in names_below(self._metadata, policies_path(tenant))}
        async for name in names_below(self._metadata, f"{tree}/{tenant}"):
            if name not in known:
                yield f"{tenant}/{name}"

    async def _give_up(self, namespace: str) -> None:
        for bundle in self._ownership.owned():
            if namespace_of(bundle) == namespace:
                await self._release.release(bundle)

    async def _forget(self, bundle: str) -> None:
        """Delete what is known of a bundle; nothing if somebody has it."""
        changes: list[Change] = [
            Check(policies_path(namespace_of(bundle)), ABSENT),
            Check(bundle_owner_path(bundle), ABSENT),
        ]
        try:
            counted = await self._metadata.get(bundle_epoch_path(bundle))
            if counted is not None:
                changes.append(Delete(bundle_epoch_path(bundle), counted.version))
            cursors = await self._metadata.get(cursors_path(bundle))
            if cursors is not None:
                changes += _without_cursors(cursors_path(bundle), cursors)
            try:
                await self._metadata.commit(changes)
            except TwoStoresError:
                # Namespaces are apart. One that is made after this look has nothing here before it
                # is claimed, which the rest would find.
                if await self._metadata.get(policies_path(namespace_of(bundle))) is None:
                    await self._metadata.commit(changes[1:])
        except BadVersionError as error:
            log.debug("bundle %s is in use: %s", bundle, error)
        except MetadataError as error:
            log.warning("bundle %s of a deleted namespace stays: %s", bundle, error)


def _without_cursors(path: str, found: Versioned) -> list[Change]:
    """What deletes the cursors of a bundle, or, if they have many ledgers, their oldest history."""
    state = BundleState.from_json(found.value)
    ledgers = sorted(state.own_ledgers)[:LEDGERS_A_COMMIT]
    changes: list[Change] = [
        Put(removed_ledger_path(ledger_id), b"{}", ANY_VERSION) for ledger_id in ledgers
    ]
    if len(ledgers) == len(state.own_ledgers):
        return [*changes, Delete(path, found.version)]
    left = replace(
        state,
        ledger_id=None if state.ledger_id in ledgers else state.ledger_id,
        to_delete=tuple(each for each in state.to_delete if each not in ledgers),
        history=tuple(each for each in state.history if each.ledger_id not in ledgers),
    )
    return [*changes, Put(path, left.to_json(), found.version)]
