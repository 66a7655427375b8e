"""What is shown of the clients of scalable topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.dispatch.scalable.followed import FollowedTopic
    from pulsark.dispatch.scalable.groups import Group

Json = dict[str, Any]


class ScalableTotals(NamedTuple):
    """Of all topics of a broker."""

    topics: int = 0
    """Topics whose layout somebody follows."""
    sessions: int = 0
    """Lookups of clients that are told of later layouts."""
    groups: int = 0
    consumers: int = 0
    """Members of groups, those that may come back among them."""
    segments_handed_over: int = 0
    """Those that are on their way from one consumer to another."""


def sums(topics: Iterable[FollowedTopic], groups: Iterable[Group]) -> ScalableTotals:
    """Count."""
    users = [len(topic.users) for topic in topics]
    found = list(groups)
    return ScalableTotals(
        len(users),
        sum(users) - len(found),  # a group follows its topic as a session does
        len(found),
        sum(len(group.shares.members) for group in found),
        sum(group.shares.handed_over for group in found),
    )


def of_topic(topic: FollowedTopic, groups: list[Group]) -> Json:
    """One topic, as its statistics have it."""
    layout = topic.layout
    return {
        "sessions": len(topic.users) - len(groups),
        "layoutEpoch": 0 if layout is None else layout.epoch,
        "segments": 0 if layout is None else len(layout),
        "groups": [_group(group) for group in groups],
    }


def _group(group: Group) -> Json:
    shares = group.shares.owned()
    return {
        "subscription": group.key.subscription,
        "type": "STREAM" if group.key.exclusive else "CHECKPOINT",
        "segmentsHandedOver": group.shares.handed_over,
        "consumers": [
            {
                "consumerName": name,
                "connected": name in group.members,
                "segments": shares.get(name, []),
            }
            for name in sorted(group.shares.members)
        ],
    }
