"""Topics that are sealed apart from all others.

Producers choose what the sealing process decodes. A topic of which that process dies, or that takes
far more time than its size explains, has delayed the others once. From then on it has a process for
such topics, where it waits for nobody else's sake, and longer after each seal that ended the
process. The metadata store keeps this over restarts of brokers.

Many such topics in one namespace or tenant set all of its topics apart: each would cost the others
one process.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pulsark.errors import BadVersionError, MetadataError, PulsarkError
from pulsark.metadata.documents import check_version
from pulsark.metadata.paths import SEALED_APART, sealed_apart_at, sealed_apart_path
from pulsark.metadata.store import ANY_VERSION
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1

APART_SECONDS: Final = 86_400.0
"""Seconds after the last trouble until a topic is sealed with the others again."""

PAUSE_SECONDS: Final = 5.0
PAUSE_SECONDS_MAX: Final = 3600.0
"""The pause after a seal that ended the process; it doubles with each further one in a row."""

TOPICS_MAX: Final = 10_000
"""Most topics that are remembered; beyond, the one whose trouble is longest ago is forgotten."""

NAMESPACE_TOPICS_MAX: Final = 3
TENANT_TOPICS_MAX: Final = 10
"""Topics apart with which a whole namespace, or tenant, is."""

REASON_CHARS_MAX: Final = 300

EXCESS_TOPIC_SECONDS: Final = 0.5
EXCESS_NAMESPACE_SECONDS: Final = 3.0
"""Seconds of a processor that sealing a topic, or all topics of a namespace, may take from others
beyond what their sizes explain."""

EXCESS_FORGOTTEN_SECONDS: Final = 60.0
"""Time after which what a topic or a namespace took is forgotten."""

EXCESS_KEPT_MAX: Final = 10_000
"""Most topics and namespaces of which it is known what they took."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What is remembered of a topic."""

    reason: str
    since_ms: int
    """When it made trouble last."""
    deaths: int = 0
    """Processes that it ended."""
    in_a_row: int = 0
    """Seals in a row in which it ended one."""
    retry_ms: int = 0
    """When it may be sealed again."""

    def encode(self) -> bytes:
        """The stored JSON."""
        document = {
            "version": FORMAT_VERSION,
            "reason": self.reason,
            "since": self.since_ms,
            "deaths": self.deaths,
            "inARow": self.in_a_row,
            "retry": self.retry_ms,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> Apart:
        """The inverse; raises ``MetadataError``."""
        try:
            document = json.loads(value)
            check_version(document, FORMAT_VERSION)
            numbers = [int(document[name]) for name in ("since", "deaths", "inARow", "retry")]
            return cls(str(document["reason"]), *numbers)
        except (KeyError, TypeError, ValueError) as e:
            raise MetadataError(f"a topic that is sealed apart cannot be read: {e!r}") from e


class Excess:
    """What sealing topics took of a processor that their sizes do not explain.

    A limit for one seal does not bound a topic with a hundred partitions, or a namespace with a
    hundred topics, which all stay just below it.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._taken: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By topic or namespace: seconds, and when they were counted."""

    def left(self, base: TopicName) -> float:
        """Return the seconds that the next seal of a topic may take beyond its size."""
        topic = EXCESS_TOPIC_SECONDS - self._of(str(base))
        namespace = EXCESS_NAMESPACE_SECONDS - self._of(base.namespace_name)
        return max(min(topic, namespace), 0.0)

    def add(self, base: TopicName, seconds: float) -> None:
        """Count what a seal took beyond its size."""
        if seconds <= 0:
            return
        for name in (str(base), base.namespace_name):
            taken = self._of(name) + seconds
            self._taken.pop(name, None)
            self._taken[name] = taken, self._now()
        while len(self._taken) > EXCESS_KEPT_MAX:
            self._taken.popitem(last=False)

    def _of(self, name: str) -> float:
        """Return the seconds taken, less what time has made good."""
        taken, since = self._taken.get(name, (0.0, 0.0))
        passed = (self._now() - since) / EXCESS_FORGOTTEN_SECONDS
        return max(taken * (1 - passed), 0.0)


class ApartTopics:
    """The topics that this broker seals apart."""

    def __init__(self, clock: Clock, metadata: MetadataStore) -> None:
        self.excess = Excess(clock)
        self._unread: set[str] = set()
        """Children of ``SEALED_APART`` that other brokers may have changed."""
        self._reading: asyncio.Task[None] | None = None
        self._end: Callable[[], None] | None = None
        self._clock = clock
        self._metadata = metadata
        self._known: dict[TopicName, Apart] = {}
        self._in_namespaces: Counter[str] = Counter()
        self._in_tenants: Counter[str] = Counter()

    async def load(self) -> None:
        """Read what brokers have stored, and delete what is old. Raises ``MetadataError``.

        From then on what other brokers store is known here: they may have sealed a topic before.
        """
        if self._end is None:
            self._end = self._metadata.watch(SEALED_APART, self._changed, self._missed)
        for child in await self._metadata.children(SEALED_APART):
            base = sealed_apart_at(child)
            stored = await self._metadata.get(sealed_apart_path(base))
            if stored is None or base in self._known:
                continue
            try:
                self._keep(base, Apart.decode(stored.value))
            except MetadataError as error:
                log.warning("%s: %s", base, error)
            if base not in self:
                with suppress(BadVersionError):
                    await self._metadata.delete(sealed_apart_path(base), stored.version)

    def _changed(self, path: str) -> None:
        self._unread.add(path.removeprefix(f"{SEALED_APART}/"))
        self._read_soon()

    def _missed(self) -> None:
        self._unread.add("")
        self._read_soon()

    def _read_soon(self) -> None:
        if self._reading is None:
            self._reading = unattended(self._read(), "reading which topics are sealed apart")

    async def _read(self) -> None:
        try:
            while self._unread:
                child = self._unread.pop()
                try:
                    await self._read_one(child)
                except PulsarkError as error:
                    log.info("cannot read which topics are sealed apart: %s", error)
        finally:
            self._reading = None

    async def _read_one(self, child: str) -> None:
        if not child or child == SEALED_APART:
            self._unread.update(await self._metadata.children(SEALED_APART))
            return
        base = sealed_apart_at(child)
        stored = await self._metadata.get(sealed_apart_path(base))
        if stored is None:
            return
        found, known = Apart.decode(stored.value), self._known.get(base)
        if known is None or found.since_ms > known.since_ms:
            self._keep(base, found)

    async def close(self) -> None:
        """Follow other brokers no more."""
        if self._end is not None:
            self._end()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def __contains__(self, base: TopicName) -> bool:
        """Whether a topic is sealed apart."""
        found = self._known.get(base)
        if found is not None:
            if self._clock.now_ms() - found.since_ms < APART_SECONDS * 1000:
                return True
            self.drop(base)
        return (
            self._in_namespaces[base.namespace_name] >= NAMESPACE_TOPICS_MAX
            or self._in_tenants[base.tenant] >= TENANT_TOPICS_MAX
        )

    def get(self, base: TopicName) -> Apart | None:
        """Return what is remembered of a topic, or None."""
        return self._known.get(base) if base in self else None

    def all(self) -> list[tuple[TopicName, Apart]]:
        """Return the topics with trouble of their own."""
        return list(self._known.items())

    def seconds_to_wait(self, base: TopicName) -> float:
        """Return how long a topic has to wait until it may be sealed again."""
        found = self._known.get(base)
        if found is None:
            return 0.0
        # The clock may have been set back.
        return max(min((found.retry_ms - self._clock.now_ms()) / 1000, PAUSE_SECONDS_MAX), 0.0)

    def made_trouble(self, base: TopicName, reason: str) -> None:
        """Note that sealing a topic failed, or took more time than its size explains."""
        self._trouble(base, reason, 0)

    def ended_process(self, base: TopicName, reason: str) -> None:
        """Note that a process ended while it sealed a topic."""
        self._trouble(base, reason, 1)

    def _trouble(self, base: TopicName, reason: str, deaths: int) -> None:
        before = self._known.get(base)
        if before is None:
            log.warning("%s is sealed apart from other topics from now on: %s", base, reason)
        now = self._clock.now_ms()
        found = before or Apart("", now)
        changed = replace(
            found, reason=reason[:REASON_CHARS_MAX], since_ms=now, deaths=found.deaths + deaths
        )
        self._keep(base, changed)

    def _keep(self, base: TopicName, apart: Apart) -> None:
        if base not in self._known:
            if len(self._known) >= TOPICS_MAX:
                self.drop(min(self._known, key=lambda name: self._known[name].since_ms))
            self._in_namespaces[base.namespace_name] += 1
            self._in_tenants[base.tenant] += 1
        self._known[base] = apart

    def deaths(self, base: TopicName) -> int:
        """Return how many processes a topic has ended."""
        found = self._known.get(base)
        return found.deaths if found is not None else 0

    async def store(self, base: TopicName) -> None:
        """Store what is known of a topic, for the brokers that have it later."""
        found = self._known.get(base)
        if found is None:
            return
        try:
            await self._metadata.put(sealed_apart_path(base), found.encode(), ANY_VERSION)
        except PulsarkError as error:
            log.info("%s: cannot store that it is sealed apart: %s", base, error)

    async def sealed(self, base: TopicName, deaths_before: int) -> None:
        """Note the end of a seal apart: after one that ended a process, the topic waits."""
        found = self._known.get(base)
        if found is None:
            return
        changed = replace(found, in_a_row=0, retry_ms=0)
        if found.deaths > deaths_before:
            pause = min(PAUSE_SECONDS * 2 ** min(found.in_a_row, 30), PAUSE_SECONDS_MAX)
            changed = replace(
                found,
                in_a_row=found.in_a_row + 1,
                retry_ms=self._clock.now_ms() + int(pause * 1000),
            )
        if changed != found:
            self._known[base] = changed
            await self.store(base)

    def drop(self, base: TopicName) -> None:
        """Forget a topic that has had no trouble for long."""
        if self._known.pop(base, None) is not None:
            for counts, name in (
                (self._in_namespaces, base.namespace_name), (self._in_tenants, base.tenant),
            ):  # fmt: skip
                counts[name] -= 1
                if not counts[name]:
                    del counts[name]
