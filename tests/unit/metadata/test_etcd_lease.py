"""For how long a process trusts its lease: never for longer than etcd keeps it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pulsark.errors import MetadataError
from pulsark.metadata.etcd.lease import Lease
from pulsark.metadata.session import SIGNS_A_DEADLINE, SURE_PART

SECONDS = 60.0


class Stepped:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class SlowEtcd:
    """Each answer comes after some of the clock's time; ``0`` for the TTL: there is no lease."""

    def __init__(self, clock: Stepped, took: list[float], ttl: float = SECONDS) -> None:
        self._clock = clock
        self._took = took
        self.ttl = ttl
        self.sent_at: list[float] = []

    async def read(self, method: str, body: object, deadline: float) -> Any:
        if method == "lease/grant":
            return {"ID": "7", "TTL": str(int(SECONDS))}
        self.sent_at.append(self._clock.now)
        if not self._took:
            await asyncio.Event().wait()
        self._clock.now += self._took.pop(0)
        return {"result": {"TTL": str(int(self.ttl))} if self.ttl else {}}


async def granted(etcd: SlowEtcd, clock: Stepped) -> Lease:
    return await Lease.grant(cast(Any, etcd), cast(Any, clock), SECONDS, 1e9)


def test_a_session_begins_only_after_a_sign_that_was_answered_at_once() -> None:
    async def scenario() -> None:
        clock = Stepped()
        etcd = SlowEtcd(clock, [SECONDS / 2, SECONDS / 8, 1.0])
        lease = await granted(etcd, clock)
        assert len(etcd.sent_at) == 3
        gone_at = etcd.sent_at[-1] + SECONDS
        assert clock.now + lease.session.sure_seconds < gone_at

    asyncio.run(scenario())


def test_a_session_counts_from_when_a_sign_was_sent_not_from_its_answer() -> None:
    async def scenario() -> None:
        clock = Stepped()
        slow = SECONDS / SIGNS_A_DEADLINE
        etcd = SlowEtcd(clock, [0.0, slow])
        lease = await granted(etcd, clock)
        clock.now += 5
        sent_at = clock.now
        lease.keep()
        while len(etcd.sent_at) < 3:  # noqa: ASYNC110 - each turn of the loop is a step of it
            await asyncio.sleep(0)
        assert lease.session.sure_seconds == pytest.approx(SURE_PART * SECONDS - slow)
        assert etcd.sent_at == [100.0, sent_at, sent_at + slow]
        lease.stop()

    asyncio.run(scenario())


def test_a_lease_that_etcd_has_ended_ends_the_session() -> None:
    async def scenario() -> None:
        clock = Stepped()
        etcd = SlowEtcd(clock, [0.0, 0.0])
        lease = await granted(etcd, clock)
        etcd.ttl = 0
        ended = asyncio.Event()
        lease.session.on_end(ended.set)
        lease.keep()
        await ended.wait()
        with pytest.raises(MetadataError, match="at once"):
            await granted(SlowEtcd(clock, [0.0], 0), clock)

    asyncio.run(scenario())
