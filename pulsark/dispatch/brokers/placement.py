"""Which broker should take a bundle that nobody has. Pure.

Any broker chooses, each by what it knows of the others. So choices need not agree, and the claim
decides; but they mostly do, because all know the same reports, and ties are decided by a hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.dispatch.brokers.load import LoadReport

ABOUT_AS_BUSY = 0.15
"""Brokers whose utilisation differs by less are taken to be equally busy."""


def choose(
    bundle: str,
    brokers: Mapping[str, LoadReport],
    chosen: Iterable[str] = (),
    beside: Mapping[str, int] | None = None,
) -> str | None:
    """The broker for a bundle: of those that are not clearly busier, the one with fewest bundles.

    ``chosen`` are brokers that were given a bundle since they reported, once for each: else all
    that are asked for at once went to one broker. ``beside`` says how many bundles of the same
    anti-affinity group brokers have: only those with the fewest are taken. ``None`` if there is no
    broker at all.
    """
    if not brokers:
        return None
    if beside:
        fewest = min(beside.get(broker_id, 0) for broker_id in brokers)
        brokers = {each: brokers[each] for each in brokers if beside.get(each, 0) == fewest}
    given = list(chosen)
    least = min(report.utilisation for report in brokers.values())
    return min(
        (
            report.bundles + given.count(broker_id),
            crc32(f"{broker_id} {bundle}".encode()),
            broker_id,
        )
        for broker_id, report in brokers.items()
        if report.utilisation <= least + ABOUT_AS_BUSY
    )[2]
