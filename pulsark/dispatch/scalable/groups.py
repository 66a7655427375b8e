"""The groups of consumers that share the segments of a topic, and what each is told.

A group is in memory only. It is lost with the broker, and its members make it anew: whoever is on
a segment then keeps it until its client is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.scalable.group_members import INFIX, Member
from pulsark.dispatch.scalable.limits import (
    GROUP_MEMBERS_MAX,
    HAND_OVER_CHECK_SECONDS,
    HAND_OVER_CHECKS_MAX,
    SEGMENT_WAIT_SECONDS,
    SEGMENTS_PER_TURN_MAX,
    SHARE_REMINDER_SECONDS,
    SHARE_SILENCE_SECONDS,
)
from pulsark.dispatch.scalable.shares import Shares
from pulsark.errors import (
    ClientError,
    CorruptEntryError,
    CorruptMetadataError,
    ServerError,
)
from pulsark.limits import TOPICS_PER_TURN_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.scalable.followed import FollowedTopic, FollowedTopics
    from pulsark.dispatch.scalable.group_members import Told
    from pulsark.dispatch.scalable.layouts import Layout
    from pulsark.dispatch.topics.consumer_admission import Subscribing
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class GroupKey(NamedTuple):
    """What makes a group."""

    topic: str
    subscription: str
    exclusive: bool
    """Stream consumers are; readers that share a checkpoint are not."""


class Group:
    """The consumers that share the segments of one topic for one subscription."""

    def __init__(self, groups: Groups, key: GroupKey, topic: FollowedTopic, layout: Layout) -> None:
        self.key = key
        self.layout = layout
        self.members: dict[str, Member] = {}
        """Members with a connection."""
        self.shares = Shares(len(layout), exclusive=key.exclusive)
        self._groups = groups
        self._topic = topic
        self._now = groups.clock.monotonic
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.Handle | None = None
        self._looked_at = self._now()
        """When it was seen last which deadlines have passed."""
        self._dealt: dict[str, list[int]] | None = None
        self._unsettled: set[str] = set()
        self._waiting: Counter[str] = Counter()
        """Whose consumers wait for their turn on a segment, and how many."""
        self._changed = asyncio.Event()
        """Set, and replaced, with each change."""
        self._ended = False

    # -- members ---

    def join(self, name: str, client: Told, consumer_id: int, request_id: int) -> Member:
        """A consumer registers, perhaps anew. Its client is told of its share."""
        known = len(self.shares.members)
        if known >= GROUP_MEMBERS_MAX and name not in self.shares.members:
            raise ClientError(
                ServerError.ConsumerBusy, f"{self.key.subscription} has {known} consumers"
            )
        former = self.members.get(name)
        if former is not None and former.client is client and consumer_id < former.consumer_id:
            # Pulsar 5's first clients try on for a consumer that failed while it was made, also
            # when the application has made it anew. A client numbers its consumers upwards.
            raise ClientError(ServerError.ConsumerBusy, f"A later consumer has the name {name!r}")
        member = Member(self, name, client, consumer_id, request_id, self._now())
        self.members[name] = member
        self.shares.join(name, self._now())
        self._after()
        return member

    def leave(self, member: Member) -> None:
        """A consumer is closed."""
        del self.members[member.name]
        self.shares.leave(member.name, self._now())
        self._after()

    def lose(self, member: Member) -> None:
        """A consumer's connection is gone; it may come back."""
        del self.members[member.name]
        self.shares.lose(member.name, self._now())
        self._after()

    def closed(self, member: Member, segment: int) -> None:
        """A client closed what it had on a segment."""
        self.shares.close(member.name, segment, self._now())
        if member.name not in self.shares.members:
            del self.members[member.name]
        self._after()

    def layout_changed(self) -> None:
        """The topic has more segments."""
        assert self._topic.layout is not None
        self.layout = self._topic.layout
        self.shares.resize(len(self.layout), self._now())
        self._after()

    # -- shares ---

    def soon(self) -> float:
        """When it is looked whether a member is on what it is told now."""
        return self._now() + SHARE_REMINDER_SECONDS

    def share(self, member: Member) -> list[int] | None:
        """What a member is to be told that it has; ``None`` if it is not time for that."""
        if not member.is_current:
            return None
        if self._dealt is None:
            self._dealt, self._unsettled = self.shares.shares(), self.shares.unsettled()
        waits = member.request_id is not None and self._now() < member.answer_by
        if waits and member.name in self._unsettled:
            return None
        share = self._dealt.get(member.name, [])
        asked = self.shares.asked(member.name)
        # Its client would fail as a whole if it did not get the first that it is told.
        return share if asked is None or member.request_id is not None else [*share, asked]

    async def turn(self, consumer_name: str, segment: int) -> None:
        """Wait until a consumer may subscribe to a segment. ``ClientError``: it is another one's.

        Nor does a client wait that was told meanwhile that it has it no more: it would close what
        it gets, and may come for it once more before that.
        """
        name = consumer_name.removesuffix(f"{INFIX}{segment}")
        if name == consumer_name:
            return  # of another kind of client
        self.shares.hear(name, self._now())
        self._after()
        self._waiting[name] += 1
        try:
            async with asyncio.timeout(SEGMENT_WAIT_SECONDS):
                while not self._ended and self.shares.owner(segment) not in (name, None):
                    member = self.members.get(name)
                    if member is not None and not member.expects(segment):
                        raise self._taken(segment)
                    await self._changed.wait()
        except TimeoutError:
            raise self._taken(segment) from None
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]

    def _taken(self, segment: int) -> ClientError:
        return ClientError(
            ServerError.ConsumerBusy,
            f"Segment {segment} of {self.key.topic} belongs to another consumer",
        )

    # -- time ---

    def _after(self) -> None:
        """Something happened. What follows is looked at once for all that happens in this turn.

        Where there are many segments, that takes long, and happens with each that is closed: then
        it is looked at less often.
        """
        self._dealt = None
        self._changed.set()
        self._changed = asyncio.Event()
        if self._look is None and not self._ended:
            loop = asyncio.get_running_loop()
            if len(self.layout) > SEGMENTS_PER_TURN_MAX:
                self._look = loop.call_later(HAND_OVER_CHECK_SECONDS, self._look_around)
            else:
                self._look = loop.call_soon(self._look_around)

    def _look_around(self) -> None:
        """See what follows, and tell those whom it concerns."""
        self._look = None
        self._dealt = None
        self._looked_at = self._now()
        self._pass_time()
        self._look_for_silent()
        self._changed.set()
        self._changed = asyncio.Event()
        for member in self.members.values():
            if member.to_tell() is not None:
                member.client.tell(member)
        self.set_timer()

    def _pass_time(self) -> None:
        holders: dict[int, Consumer] = {}

        def is_subscribed(name: str, segment: int) -> bool:
            wanted = f"{name}{INFIX}{segment}"
            for consumer in self._groups.consumers_of(self.layout.partition(segment), self.key):
                if consumer.name == wanted:
                    holders[segment] = consumer
                    return True
            return False

        for segment in self.shares.pass_time(self._now(), is_subscribed):
            holder = holders[segment]
            log.info(
                "%s: consumer %s did not give up a segment in time: closing it",
                self.key.topic,
                holder.name,
            )
            holder.connection.close_consumer(holder)

    def _look_for_silent(self) -> None:
        """Who is not on what it was told is told again. If that does not help, others get it.

        Pulsar 5's first clients drop what they are told while they are made, and say nothing when
        a consumer is closed that was on no segment.
        """
        now, left = self._now(), HAND_OVER_CHECKS_MAX
        for member in self.members.values():
            if left <= 0:
                return
            if not member.owed or now < member.look_at:
                continue
            if self._waiting[member.name]:
                member.look_at = self.soon()  # it is not silent
                continue
            some = list(islice(member.owed, left))
            left -= len(some)
            seen = {segment for segment in some if self._is_on(member, segment)}
            member.owed -= seen
            if seen:
                self.shares.hear(member.name, now)
                member.look_at, member.reminded = self.soon(), False
            elif not member.reminded:
                member.reminded = member.unheard = True
                member.look_at = now + SHARE_SILENCE_SECONDS
            else:
                if member.told is not None and len(member.owed) == len(member.told[1]):
                    log.info(
                        "%s: consumer %s uses none of its segments: giving them to others",
                        self.key.topic,
                        member.name,
                    )
                    self.shares.silence(member.name, now)
                    self._dealt = None
                member.owed.clear()

    def _is_on(self, member: Member, segment: int) -> bool:
        name = member.consumer_name(segment)
        found = self._groups.consumers_of(self.layout.partition(segment), self.key)
        return any(consumer.name == name for consumer in found)

    def set_timer(self) -> None:
        """Go on when there is something to do."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.shares.is_over and not self.shares.hands_over:
            self.end()
            return
        now = self._now()
        waiting = [m.answer_by for m in self.members.values() if m.request_id is not None]
        waiting += [member.look_at for member in self.members.values() if member.owed]
        times = [until for until in (*waiting, self.shares.next_deadline()) if until is not None]
        # A timer may be a bit early: then a deadline passes between the look and now.
        times = [until for until in times if until > self._looked_at]
        if self.shares.hands_over:
            times.append(now + HAND_OVER_CHECK_SECONDS)
        if times:
            seconds = max(min(times) - now, 0.001)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._look_around()

    def end(self) -> None:
        """Nobody is left, or the broker stops."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ended = True
        self.members.clear()
        self._changed.set()
        self._topic.leave(self)
        self._groups.forget(self)


class Groups:
    """The groups of a broker."""

    def __init__(
        self, clock: Clock, topics: Topics, subscribing: Subscribing, followed: FollowedTopics
    ) -> None:
        self.clock = clock
        self._topics = topics
        self._subscribing = subscribing
        self._followed = followed
        self._groups: dict[GroupKey, Group] = {}
        self._of_topics: dict[str, dict[Group, None]] = {}

    def all(self) -> Iterator[Group]:
        """In no order."""
        return iter(self._groups.values())

    def of(self, topic: TopicName) -> list[Group]:
        """The groups of one topic."""
        return list(self._of_topics.get(str(topic), ()))

    async def join(
        self, key: GroupKey, topic: TopicName, name: str, client: Told, consumer_id: int,
        request_id: int,
    ) -> Member:  # fmt: skip
        """Register a consumer, which its client may do again. ``PulsarkError``.

        A consumer of the same name on another connection is asked whether it is still there.
        """
        dead: Member | None = None
        while True:
            group = await self._group(key, topic)
            known = group.members.get(name)
            if known is None or known is dead or known.client is client:
                return group.join(name, client, consumer_id, request_id)
            if await known.client.probe():
                raise ClientError(
                    ServerError.ConsumerBusy,
                    f"A consumer {name!r} of {key.subscription} is connected",
                )
            # Meanwhile the group may have ended, or another one may have taken the name.
            dead = known

    async def _group(self, key: GroupKey, topic: TopicName) -> Group:
        group = self._groups.get(key)
        if group is not None:
            return group
        user = _Opening()
        followed = await self._followed.follow(topic, user, create=True)
        try:
            assert followed.layout is not None
            held = await self._held(key, followed.layout)
            group = self._groups.get(key)
            if group is None:
                group = Group(self, key, followed, followed.layout)
                self._groups[key] = group
                self._of_topics.setdefault(key.topic, {})[group] = None
                followed.users[group] = None
                for segment, name in held:
                    if segment < len(group.layout):
                        group.shares.hold(name, segment, self.clock.monotonic())
            return group
        finally:
            followed.leave(user)

    async def _held(self, key: GroupKey, layout: Layout) -> list[tuple[int, str]]:
        """Who is on which segment, without a group yet."""
        held: list[tuple[int, str]] = []
        # Of readers nobody knows the group.
        segments = range(len(layout)) if key.exclusive else range(0)
        async for segment in in_turns(segments, TOPICS_PER_TURN_MAX):
            for consumer in self.consumers_of(layout.partition(segment), key):
                name = consumer.name.removesuffix(f"{INFIX}{segment}")
                if name != consumer.name:
                    held.append((segment, name))
        return held

    def consumers_of(self, partition: TopicName, key: GroupKey) -> list[Consumer]:
        """The consumers of a group's subscription of one segment; or its readers."""
        topic = self._topics.get(partition)
        if topic is None:
            return []
        if not key.exclusive:
            every = topic.subscriptions.values()
            return [consumer for each in every for consumer in each.type.consumers]
        subscription = topic.subscriptions.get(key.subscription)
        return [] if subscription is None else list(subscription.type.consumers)

    async def turn(self, partition: TopicName, subscription: str, consumer_name: str) -> None:
        """Let the stream consumer of a segment wait until the former one is gone."""
        group = self._groups.get(GroupKey(str(partition.base), subscription, True))
        if group is not None:
            await group.turn(consumer_name, max(partition.partition, 0))

    async def prepare(self, topic: TopicName, layout: Layout) -> None:
        """Make the subscriptions of groups on new partitions, before anybody writes to them.

        Raise what may be better next time; a partition that is damaged keeps no others back.
        """
        for group in self.of(topic):
            for number in range(len(group.layout), len(layout)) if group.key.exclusive else ():
                try:
                    partition = await self._topics.load(layout.partition(number), create=True)
                    await self._subscribing.ensure_subscription(partition, group.key.subscription)
                except (ClientError, CorruptMetadataError, CorruptEntryError) as error:
                    log.warning(
                        "%s: cannot create subscription %s: %s",
                        layout.partition(number),
                        group.key.subscription,
                        error,
                    )

    def forget(self, group: Group) -> None:
        """A group has ended."""
        if self._groups.get(group.key) is group:
            del self._groups[group.key]
            others = self._of_topics[group.key.topic]
            del others[group]
            if not others:
                del self._of_topics[group.key.topic]

    def close(self) -> None:
        """The broker stops."""
        for group in list(self._groups.values()):
            group.end()


class _Opening:
    """Uses a topic's layout while a group is made."""

    def layout_changed(self) -> None:
        """The group takes what is there in the end."""
