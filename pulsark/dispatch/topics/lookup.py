"""Who serves a topic: what lookups of clients and of the admin API ask.

Any broker answers. If nobody has the topic's bundle, it chooses who should by the load of the live
brokers, and either claims the bundle itself, or sends the client on to the chosen one, which then
claims it whatever it thinks of the choice. Some clients cannot be sent on: where all brokers have
one address they know only that one, and over HTTP many keep their credentials from another host or
port. Then the chosen broker is told to claim, and the answer waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.owners import Assigned
from pulsark.dispatch.brokers.placement import choose
from pulsark.errors import BadVersionError, ClientError, OutcomeUnknownError, ServerError
from pulsark.metadata.changes import Check, Put
from pulsark.metadata.paths import assigned_bundle_path, bundle_owner_path
from pulsark.metadata.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.config.settings import Settings
    from pulsark.dispatch.brokers.candidates import Candidates
    from pulsark.dispatch.brokers.owners import BundleOwner, BundleOwners
    from pulsark.dispatch.brokers.registry import BrokerRegistry, LiveBroker
    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

CLAIM_SECONDS = 5.0
"""So long a lookup waits for the claim of another broker."""

LOOK_SECONDS = 0.2
"""So often it looks meanwhile whether that broker is still there."""

CHOICES = 3
"""Brokers that a lookup chooses one after the other, because they die."""

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Where a topic is served."""

    urls: ServiceUrls
    through_service_url: bool = False
    """Reach it by the address in use already."""
    is_redirect: bool = False
    """Ask the broker at these addresses, with authority: it will serve the topic."""
    broker_id: str = ""
    is_here: bool = True


class Lookup:
    """Finds the brokers of topics."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        metadata: MetadataStore,
        ownership: Ownership,
        owners: BundleOwners,
        registry: BrokerRegistry,
        candidates: Candidates,
        check_enabled: Callable[[TopicName], None],
    ) -> None:
        """``check_enabled`` raises ``ClientError`` for topics of a kind that is off here."""
        self._settings = settings
        self._clock = clock
        self._metadata = metadata
        self._ownership = ownership
        self._owners = owners
        self._registry = registry
        self._candidates = candidates
        self._check_enabled = check_enabled
        self._chosen: dict[str, tuple[str, LiveBroker | None]] = {}
        """By bundle the broker that was chosen here, and what it said of itself then."""
        self.hands_over = False
        """Whether clients reach any broker by one address, and one that asks for another's is
        passed on to it; but nobody passes on what is encrypted."""

    async def find(
        self,
        name: TopicName,
        *,
        authoritative: bool = False,
        listener: str = "",
        over_tls: bool = False,
        sends_on: bool = True,
    ) -> LookupResult:
        """Who serves a topic, or will. Never creates it, but has its bundle claimed.

        ``authoritative``: another broker has decided that it is this one, if nobody is it yet.
        ``sends_on``: the client may be sent on to the broker that will.
        Raises ``ClientError(ServiceNotReady)`` if it is not known now: the client asks again.
        """
        if listener:
            raise ClientError(
                ServerError.ServiceNotReady,
                f"The broker has no listener {listener!r}; clients need no listener name here",
            )
        self._ownership.check_session(str(name))
        alone = self._registry.is_alone
        if alone:
            self._check_enabled(name)
        bundle = await self._ownership.bundle_named(name)
        if alone and not self._ownership.has(bundle):
            self._candidates.check_alone(bundle)
        if alone:
            return self._here(over_tls=over_tls)  # it is claimed with its first client
        if self._ownership.has(bundle):
            self._check_enabled(name)
            return self._here(over_tls=over_tls)
        if self._ownership.is_leaving(bundle):
            raise _ask_again(bundle, "is being unloaded")
        owner = await self._owner(bundle)
        if owner is not None and owner.broker_id != self._registry.own_id:
            self._check_kind(name, bundle, owner)
            return self._there(owner, over_tls=over_tls)
        sends_on = sends_on and not self.hands_over
        if owner is not None:
            return await self._claimed(name, bundle, over_tls=over_tls, sends_on=sends_on)
        for _ in range(CHOICES):
            target = await self._target(
                bundle, persistent=name.is_persistent, authoritative=authoritative
            )
            if target is None or target.broker_id == self._registry.own_id:
                return await self._claimed(name, bundle, over_tls=over_tls, sends_on=sends_on)
            found = await self._sent_to(bundle, target, over_tls=over_tls, sends_on=sends_on)
            if found is not None:
                return found
        raise _ask_again(bundle, "was to go to brokers that have died")

    async def give(self, bundle: str) -> bool:
        """Give a bundle that nobody has to a broker; whether it is this one, and has it now."""
        owner = await self._owners.of(bundle)
        if owner is not None and owner.broker_id != self._registry.own_id:
            return False
        target = None
        try:
            if self._registry.is_alone:
                self._candidates.check_alone(bundle)
            elif owner is None:
                target = await self._target(bundle, persistent=True, authoritative=False)
        except ClientError as error:
            log.debug("bundle %s stays nobody's: %s", bundle, error)
            return False
        if target is not None and target.broker_id != self._registry.own_id:
            await self.assign(bundle, target.broker_id)
            return False
        try:
            await self._ownership.claim(bundle)
        except ClientError:
            return False  # another was faster, or it is being unloaded
        return True

    async def place(self, bundle: str, broker_id: str) -> None:
        """Have a broker claim a bundle that nobody has, whatever was decided before.

        Raises ``ClientError(ServiceNotReady)`` if it does not do so in time, or another has it.
        """
        if broker_id == self._registry.own_id:
            await self.assign(bundle, broker_id, anew=True)
            await self._ownership.claim(bundle)
            return
        target = self._registry.get(broker_id)
        owner = None if target is None else await self._wait_for(bundle, target, anew=True)
        if owner is None or owner.broker_id != broker_id:
            raise _ask_again(bundle, f"does not go to the broker {broker_id} just now")

    # -- answers ---

    def _here(self, *, over_tls: bool) -> LookupResult:
        own = self._registry.own
        if own is None:
            raise ClientError(ServerError.ServiceNotReady, "The broker is starting, or stopping")
        self._ownership.check_session(own.broker_id)  # what was awaited may have taken long
        return LookupResult(own.urls, self._through(over_tls=over_tls), broker_id=own.broker_id)

    def _there(self, owner: BundleOwner, *, over_tls: bool) -> LookupResult:
        if owner.broker_id == self._registry.own_id:
            return self._here(over_tls=over_tls)
        through = self._through(over_tls=over_tls)
        live = self._registry.get(owner.broker_id)
        urls = owner.urls if live is None else live.urls
        return LookupResult(urls, through, broker_id=owner.broker_id, is_here=False)

    def _check_kind(self, name: TopicName, bundle: str, owner: BundleOwner) -> None:
        """All topics of a bundle are at one broker, and that may serve one kind only."""
        live = self._registry.get(owner.broker_id)
        if live is not None and not live.serves(persistent=name.is_persistent):
            raise ClientError(
                ServerError.NotAllowedError,
                f"Bundle {bundle} is at the broker {live.broker_id}, where {name.domain} topics "
                f"are not enabled; keep each kind in a namespace of its own",
            )

    def _through(self, *, over_tls: bool) -> bool:
        """A broker that is alone is reached by any address that leads to it."""
        if self.hands_over:
            return not over_tls
        return self._registry.is_alone and self._settings.advertisedAddress in _THIS_MACHINE

    async def _sent_to(
        self, bundle: str, target: LiveBroker, *, over_tls: bool, sends_on: bool
    ) -> LookupResult | None:
        """What a client hears if another broker is to have a bundle; ``None``: that has died."""
        if sends_on:
            return LookupResult(
                target.urls, is_redirect=True, broker_id=target.broker_id, is_here=False
            )
        owner = await self._wait_for(bundle, target)
        return None if owner is None else self._there(owner, over_tls=over_tls)

    # -- owners ---

    async def _owner(self, bundle: str) -> BundleOwner | None:
        """Who has a bundle. This broker may not know that it is it, or a former process was."""
        owner = await self._owners.of(bundle)
        if owner is not None and owner.leaving and owner.broker_id != self._registry.own_id:
            raise _ask_again(bundle, "is being unloaded")
        return owner

    async def _target(
        self, bundle: str, *, persistent: bool, authoritative: bool
    ) -> LiveBroker | None:
        """Who should have a bundle that nobody has; ``None`` is this broker."""
        noted = await self._noted(bundle)
        if noted is not None:
            return noted
        if authoritative and self._candidates.may_have(self._registry.own_id, bundle):
            return None
        candidates = self._candidates.of(bundle, persistent=persistent)
        beside = await self._candidates.beside(bundle)
        given = self._chosen_since_reports()
        chosen = choose(bundle, candidates, given.values(), beside.held(given))
        found = None if chosen is None else self._registry.get(chosen)
        if found is None:
            raise _ask_again(bundle, "was to go to a broker that has just left")
        self._chosen[bundle] = found.broker_id, found
        return found

    async def _noted(self, bundle: str) -> LiveBroker | None:
        """Who was told to claim a bundle, and may still do so."""
        assigned = await self._owners.assigned(bundle)
        if assigned is None or not assigned.holds(self._clock.now_ms()):
            return None
        return self._registry.get(assigned.broker_id)

    def _chosen_since_reports(self) -> dict[str, str]:
        """By bundle brokers that were chosen here and have not said anything since."""
        live = self._registry.live
        self._chosen = {
            bundle: (broker_id, then)
            for bundle, (broker_id, then) in self._chosen.items()
            if live.get(broker_id) is then
        }
        return {bundle: broker_id for bundle, (broker_id, _) in self._chosen.items()}

    async def _claimed(
        self, name: TopicName, bundle: str, *, over_tls: bool, sends_on: bool
    ) -> LookupResult:
        self._check_enabled(name)
        try:
            await self._ownership.claim(bundle)
        except ClientError:
            # Another was faster, or was told to claim it meanwhile; its claim ends the note.
            noted = await self._noted(bundle)
            owner = await self._owner(bundle)
            if owner is not None and owner.broker_id != self._registry.own_id:
                return self._there(owner, over_tls=over_tls)
            if owner is not None or noted is None or noted.broker_id == self._registry.own_id:
                raise
            found = await self._sent_to(bundle, noted, over_tls=over_tls, sends_on=sends_on)
            if found is None:
                raise
            return found
        return self._here(over_tls=over_tls)

    async def _wait_for(
        self, bundle: str, target: LiveBroker, *, anew: bool = False
    ) -> BundleOwner | None:
        """Have a broker claim a bundle; whoever has it then. ``None``: it has died instead."""
        until = self._clock.monotonic() + CLAIM_SECONDS
        with self._owners.changes_of(bundle) as changed:
            await self.assign(bundle, target.broker_id, anew=anew)
            while True:
                changed.clear()
                owner = await self._owner(bundle)
                if owner is not None:
                    return owner
                if self._registry.get(target.broker_id) is None:
                    return None
                left = until - self._clock.monotonic()
                if left <= 0:
                    raise _ask_again(bundle, "is not claimed yet")
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await changed.wait()

    async def assign(self, bundle: str, broker_id: str, *, anew: bool = False) -> None:
        """Tell a broker to claim a bundle that nobody has, unless one was told so just now.

        ``anew``: also then.
        """
        path = assigned_bundle_path(bundle)
        note = Assigned(broker_id, self._clock.now_ms())
        found = await self._metadata.get(path)
        if found is not None:
            before = Assigned.decode(found)
            is_there = self._registry.get(before.broker_id) is not None
            if not anew and is_there and before.holds(self._clock.now_ms()):
                return
        version = ABSENT if found is None else found.version
        try:
            await self._metadata.commit(
                (
                    Check(bundle_owner_path(bundle), ABSENT),
                    Put(path, note.encode(), version),
                )
            )
        except (BadVersionError, OutcomeUnknownError):
            return  # another was faster, or nobody knows: who waits for it sees what comes of it


def _ask_again(bundle: str, why: str) -> ClientError:
    return ClientError(ServerError.ServiceNotReady, f"Bundle {bundle} {why}; look it up again")
