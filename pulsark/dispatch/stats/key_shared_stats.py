"""What the admin API says of Key_Shared subscriptions beyond what it says of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsark.dispatch.model.subscription_type import SubType
from pulsark.dispatch.subscription.key_shared import KeyShared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.interfaces import AnySubscription

Json = dict[str, Any]

NOT_DRAINING: Mapping[str, int] = {
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
}


def key_shared_of_consumers(subscription: AnySubscription) -> dict[Consumer, Json]:
    """For each consumer the slots it owns, and those it holds for another one to get."""
    type_ = subscription.type
    if not isinstance(type_, KeyShared):
        return {}
    ranges: dict[Consumer, list[list[int]]] = {consumer: [] for consumer in type_.consumers}
    for first, last, consumer in type_.selector.ranges():
        own = ranges[consumer]
        if own and own[-1][1] == first - 1:
            own[-1][1] = last
        else:
            own.append([first, last])
    draining = type_.draining()
    found = {}
    for consumer, own in ranges.items():
        hashes = [
            {"hash": slot, "unackMsgs": h.entries, "blockedAttempts": h.blocked_attempts}
            for slot, h in draining.get(consumer, ())
        ]
        found[consumer] = {
            "drainingHashesCount": len(hashes),
            "drainingHashesClearedTotal": type_.drained[consumer],
            "drainingHashesUnackedMessages": sum(h["unackMsgs"] for h in hashes),
            "drainingHashes": hashes,
            "keyHashRangeArrays": own,
        }
    return found


def key_shared_of_subscription(subscription: AnySubscription, consumers: list[Json]) -> Json:
    """The mode, and sums over what was said of the consumers."""
    sums: Json = {key: sum(consumer[key] for consumer in consumers) for key in NOT_DRAINING}
    spec = subscription.members.spec
    if spec is None or spec.sub_type != SubType.Key_Shared:
        return {"allowOutOfOrderDelivery": False, **sums}
    return {
        "allowOutOfOrderDelivery": spec.allow_out_of_order,
        "keySharedMode": spec.key_shared_mode,
        **sums,
    }
