"""What ``/metrics`` has of bundles, brokers and the session with the metadata store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

from pulsark.admin.pulsar.histogram import histogram
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.brokers.counts import Reason
from pulsark.dispatch.loop.durations import Durations

Labels = tuple[tuple[str, str], ...]


def ownership_samples(broker: Broker) -> Iterator[tuple[str, Labels, float]]:
    """Samples of one broker."""
    counts = broker.ownership.counts
    yield "pulsark_bundles_owned", (), len(broker.ownership.owned())
    yield "pulsark_bundle_claims_total", (), counts.claims
    yield "pulsark_bundle_claims_refused_total", (), counts.refused_claims
    for reason in get_args(Reason):
        yield "pulsark_bundle_releases_total", (("reason", reason),), counts.left[reason]
    yield "pulsark_brokers", (), len(broker.registry.live)
    yield "pulsark_broker_leads", (), int(broker.leader.is_here)
    own = broker.registry.own
    if own is not None:
        yield "pulsark_broker_utilisation", (), own.load.utilisation
    session = broker.metadata.session
    if session.timeout_seconds < math.inf:
        yield "pulsark_metadata_session_age_seconds", (), session.age_seconds
        yield "pulsark_metadata_session_sure_seconds", (), session.sure_seconds
        yield "pulsark_metadata_session_unsure_total", (), session.lapses
        yield "pulsark_metadata_session_lost", (), int(session.has_ended)


def moves(durations: Durations, label: str) -> str:
    """How long bundles were on their way: a histogram."""
    name = "pulsark_bundle_move_seconds"
    return histogram(name, label, durations.buckets(), durations.total_seconds, durations.count)
