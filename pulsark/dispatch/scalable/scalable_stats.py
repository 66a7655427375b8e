"""What is shown of the clients of scalable topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.dispatch.loop.turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.dispatch.scalable.followed import FollowedTopic
    from pulsark.dispatch.scalable.groups import Group

Json = dict[str, Any]

COUNTED_PER_TURN = 1000
"""Topics or groups: some tenths of a millisecond."""


class ScalableTotals(NamedTuple):
    """Totals of all topics of a broker."""

    topics: int = 0
    """Topics whose layout somebody follows."""
    sessions: int = 0
    """Lookups of clients that are told of later layouts."""
    groups: int = 0
    consumers: int = 0
    """Members of groups, those that may come back among them."""
    segments_handed_over: int = 0
    """Segments that are moving from one consumer to another."""


async def counted(topics: Iterable[FollowedTopic], groups: Iterable[Group]) -> ScalableTotals:
    """Count, in turns of the event loop: what comes or goes meanwhile may be counted or not."""
    all_topics, all_groups = list(topics), list(groups)
    users = members = handed_over = 0
    async for topic in in_turns(all_topics, COUNTED_PER_TURN):
        users += len(topic.users)
    async for group in in_turns(all_groups, COUNTED_PER_TURN):
        members += len(group.shares.members)
        handed_over += group.shares.handed_over
    sessions = max(users - len(all_groups), 0)  # a group follows its topic as a session does
    return ScalableTotals(len(all_topics), sessions, len(all_groups), members, handed_over)


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
