"""What a broker does again and again, and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.loop.chores import Chore
from pulsark.dispatch.stats.load_reports import REPORT_SECONDS
from pulsark.dispatch.topics.inactivity import drop_unused
from pulsark.dispatch.upkeep.deleted_namespaces import DeletedNamespaces
from pulsark.dispatch.upkeep.disk_relief import (
    LOOK_SECONDS,
    UNLOADED_LOOK_SECONDS,
    DiskRelief,
)
from pulsark.dispatch.upkeep.interrupted_deletions import InterruptedDeletions
from pulsark.dispatch.upkeep.storage_quotas import CHECK_SECONDS, FIRST_CHECK_SECONDS
from pulsark.dispatch.upkeep.unloaded_policies import UnloadedPolicies
from pulsark.dispatch.upkeep.unloaded_sealing import (
    FIRST_SWEEP_SECONDS,
    SWEEP_SECONDS,
    UnloadedSealing,
)
from pulsark.dispatch.upkeep.unloaded_topics import UnloadedTopics
from pulsark.dispatch.upkeep.upkeep import chores_of_topics
from pulsark.limits import FEATURE_LEVEL_CHECK_SECONDS, UNUSED_NON_PERSISTENT_TOPIC_SECONDS
from pulsark.storage.managed_ledger.deletion import delete_noted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.dispatch.broker import Broker

_LOST_CHECK_SECONDS = 1.0
_DELETED_CHECK_SECONDS = 60.0
_DELETED_NAMESPACES_SECONDS = 600.0


def chores_of(broker: Broker) -> list[Chore]:
    """The chores of a broker, to be started once."""
    settings, topics = broker.settings, broker.topics

    async def drop_lost() -> None:
        # The logs first: a topic that is loaded again needs another one.
        broker.cursor_logs.drop_failed()
        await topics.drop_lost()

    async def drop_idle() -> None:
        alone = broker.registry.is_alone
        await drop_unused(
            broker.non_persistent, broker.deletion, settings, broker.clock, alone=alone
        )

    deleted_namespaces = DeletedNamespaces(
        broker.metadata, broker.ownership, broker.bundle_release, broker.share
    )

    async def delete_namespaces() -> None:
        if broker.share.leads:
            for tenant in await broker.resources.tenants.list():
                await broker.namespace_deletion.settle(tenant)
        await deleted_namespaces.look()

    async def delete_ledgers() -> None:
        if broker.share.leads:
            await delete_noted(broker.ledgers, broker.metadata)

    async def follow_feature_level() -> None:
        await broker.feature_levels.follow(leads=broker.share.leads)

    async def note_rates() -> None:
        broker.rates.note()

    return [
        *chores_of_topics(settings, topics, broker.deletion),
        Chore("lost topics", _LOST_CHECK_SECONDS, drop_lost),
        Chore("unused non-persistent topics", UNUSED_NON_PERSISTENT_TOPIC_SECONDS, drop_idle),
        Chore("deleted namespaces", _DELETED_NAMESPACES_SECONDS, delete_namespaces),
        Chore("ledgers of deleted topics", _DELETED_CHECK_SECONDS, delete_ledgers),
        Chore("feature level", FEATURE_LEVEL_CHECK_SECONDS, follow_feature_level),
        Chore("load report", REPORT_SECONDS, broker.load_reports.report),
        Chore("split of bundles", REPORT_SECONDS, broker.auto_split.look),
        Chore(
            "load shedding",
            settings.loadBalancerSheddingIntervalMinutes * 60,
            broker.load_shedding.look,
        ),
        Chore("rates", settings.statsUpdateFrequencyInSecs, note_rates),
        *_for_unloaded_topics(broker),
    ]


def _for_unloaded_topics(broker: Broker) -> Iterator[Chore]:
    """What is done for topics that nobody has loaded, and the sealing of those that are."""
    settings, share = broker.settings, broker.share
    unloaded = UnloadedTopics(settings, broker.metadata, broker.resources, broker.topics, share)
    interrupted = InterruptedDeletions(broker.resources, broker.catalog, broker.deletion, share)
    policies = UnloadedPolicies(
        broker.runtime,
        broker.metadata,
        broker.cursor_logs,
        broker.topics,
        broker.deletion,
        broker.ownership,
    )

    async def hold_policies() -> None:
        await interrupted.finish()
        await unloaded.look_after(policies)

    every = settings.topicsAtRestCheckIntervalInSeconds
    if every:
        yield Chore("policies of unloaded topics", every, hold_policies)

    async def trim_unloaded() -> None:
        await unloaded.look_after(policies)

    relief = DiskRelief(
        settings,
        broker.clock,
        broker.ledgers,
        broker.topics,
        broker.disks,
        broker.sealing.tidy_soon,
        trim_unloaded,
    )
    broker.sealing.rounds.is_short = lambda: relief.is_needed
    yield Chore("full disks", LOOK_SECONDS, relief.look, first_seconds=0.0)
    yield Chore("unloaded topics on full disks", UNLOADED_LOOK_SECONDS, relief.look_at_unloaded)
    unsealed = UnloadedSealing(broker.metadata, broker.tables, broker.sealing)

    async def seal() -> None:
        await broker.topic_tables.delete_doomed(share.has)
        await unloaded.look_after(unsealed)

    async def measure() -> None:
        await broker.storage_quotas.enforce(unloaded)

    yield Chore("storage quotas", CHECK_SECONDS, measure, FIRST_CHECK_SECONDS)
    yield broker.sealing.chore()
    yield Chore("sealing of unloaded topics", SWEEP_SECONDS, seal, FIRST_SWEEP_SECONDS)
