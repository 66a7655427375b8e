"""Which broker should take an unowned bundle. Pure.

Each broker chooses by its own view of the others, so choices may differ; the claim decides. Mostly
they agree, because all brokers have the same reports, and a hash breaks ties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.dispatch.brokers.load import LoadReport

ABOUT_AS_BUSY = 0.15
"""Brokers whose utilisation differs by less count as equally busy."""


def choose(
    bundle: str,
    brokers: Mapping[str, LoadReport],
    chosen: Iterable[str] = (),
    beside: Mapping[str, int] | None = None,
) -> str | None:
    """The broker for a bundle: of those that are not clearly busier, the one with fewest bundles.

    ``chosen`` are brokers that got a bundle since their last report, once per bundle; otherwise all
    bundles of one moment would go to one broker. ``beside``: how many bundles of the same
    anti-affinity group each broker has; only brokers with the fewest are considered. ``None`` if
    there is no broker.
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
