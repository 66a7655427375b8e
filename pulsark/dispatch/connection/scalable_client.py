"""What one client of Pulsar 5 has open beside producers and consumers.

Those are its lookups of topics, its consumers that share the segments of a topic with others, and
the namespaces that it follows.
Everything here ends with the connection, by reference and not by a coroutine's end.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.namespace_watches import NamespaceWatch, NamespaceWatches
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.scalable.limits import (
    SCALABLE_CONSUMERS_PER_CONNECTION_MAX,
    SCALABLE_SEGMENTS_PER_CONNECTION_MAX,
    SCALABLE_SESSIONS_PER_CONNECTION_MAX,
    SEGMENTS_PER_TURN_MAX,
)
from pulsark.errors import ClientError, ServerError
from pulsark.limits import FRAME_OVERHEAD_BYTES
from pulsark.wire.frames import NO_REQUEST
from pulsark.wire.layout_fields import (
    assigned_fields,
    first_share_frame,
    layout_frame,
    segment_fields,
    share_frame,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from pulsark.dispatch.broker import Broker
    from pulsark.dispatch.connection.output import Output
    from pulsark.dispatch.connection.pending_requests import PendingRequests
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.scalable.followed import FollowedTopic
    from pulsark.dispatch.scalable.group_members import Member
    from pulsark.dispatch.scalable.groups import GroupKey
    from pulsark.dispatch.scalable.layouts import Layout
    from pulsark.wire import pulsar_pb2 as pb
    from pulsark.wire.layout_fields import Segment
    from pulsark.wire.topic_name import TopicName


class LookupSession:
    """A client's lookup of one topic: it is told of its layout, and of each later one."""

    __slots__ = ("_client", "closed", "session_id", "topic")

    def __init__(self, client: ScalableClient, session_id: int) -> None:
        self.session_id = session_id
        self.topic: FollowedTopic | None = None
        """``None`` until the topic is known."""
        self.closed = False
        self._client = client

    def layout_changed(self) -> None:
        """There is a later layout."""
        if self.topic is not None and not self.closed:
            self._client.tell(self)

    def close(self) -> None:
        """The client hears of it no more."""
        self.closed = True
        if self.topic is not None:
            self.topic.leave(self)


class ScalableClient:
    """Its sessions, members of groups and watches, each by the id that the client gave it."""

    def __init__(
        self,
        output: Output,
        requests: PendingRequests,
        broker: Broker,
        probe: Callable[[], Awaitable[bool]],
    ) -> None:
        """``probe`` says whether the client still answers; if not, its connection is closed."""
        self.sessions: dict[int, LookupSession] = {}
        self.members: dict[int, Member] = {}
        self._expected: dict[int, int] = {}
        """The consumers that are being registered, and by which request."""
        self._probe = probe
        self._output = output
        self._requests = requests
        self._run_queue = broker.run_queue
        topics = broker.scalable_topics()
        self._followed = topics.followed
        self._groups = topics.groups
        self._frame_bytes_max = broker.settings.maxMessageSize + FRAME_OVERHEAD_BYTES
        self._untold: dict[LookupSession | Member | NamespaceWatch, None] = {}
        self._tells = False
        self.watches = NamespaceWatches(
            output, broker.topic_feeds, broker.catalog.require_namespace, self.tell
        )

    # -- lookups ---

    def new_session(self, session_id: int) -> LookupSession:
        """Begin a session, or raise ``ClientError``. ``open`` is what follows.

        It is known at once, so that a client that gives it up meanwhile finds it.
        """
        self.drop_session(session_id)
        most = SCALABLE_SESSIONS_PER_CONNECTION_MAX
        if len(self.sessions) >= most:
            raise ClientError(
                ServerError.TooManyRequests, f"A connection may look {most} topics up at a time"
            )
        session = self.sessions[session_id] = LookupSession(self, session_id)
        return session

    async def open(self, session: LookupSession, name: TopicName, *, create: bool) -> None:
        """Find out what its layout is, or raise. Its client is told of that afterwards."""
        try:
            session.topic = await self._followed.follow(name, session, create=create)
        except BaseException:
            if self.sessions.get(session.session_id) is session:
                del self.sessions[session.session_id]
            raise
        if session.closed:
            session.topic.leave(session)
        else:
            self.tell(session)

    def drop_session(self, session_id: int) -> None:
        """A client follows a layout no more."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            session.close()
            self._untold.pop(session, None)

    def refuse_session(self, session_id: int, error: Exception) -> None:
        """A client may follow a layout no more."""
        self.drop_session(session_id)
        self._output.send(notices.layout_error(session_id, error))

    # -- shares ---

    def expect_member(self, consumer_id: int, request_id: int) -> None:
        """A client registers a consumer, which it may give up before ``join`` is done."""
        self.drop_member(consumer_id)
        most = SCALABLE_CONSUMERS_PER_CONNECTION_MAX
        if len(self.members) + len(self._expected) >= most:
            raise ClientError(
                ServerError.TooManyRequests, f"A connection may have {most} stream consumers"
            )
        self._expected[consumer_id] = request_id

    async def join(
        self, key: GroupKey, topic: TopicName, request: pb.CommandScalableTopicSubscribe
    ) -> None:
        """Register a consumer, or raise. Its client is told its share afterwards."""
        consumer_id, request_id = request.consumer_id, request.request_id
        try:
            member = await self._groups.join(
                key, topic, request.consumer_name, self, consumer_id, request_id
            )
            if self._expected.get(consumer_id) != request_id:
                member.leave()
                raise _closed(request.consumer_name)
            self._check_segments(member)
        finally:
            if self._expected.get(consumer_id) == request_id:
                del self._expected[consumer_id]
            self._drop_former()  # also of one that was given up: it had taken another's place
        self.members[consumer_id] = member

    def _check_segments(self, member: Member) -> None:
        most = SCALABLE_SEGMENTS_PER_CONNECTION_MAX
        have = sum(len(each.group.layout) for each in self.members.values() if each.is_current)
        if have and have + len(member.group.layout) > most:
            member.leave()
            raise ClientError(
                ServerError.TooManyRequests,
                f"The stream consumers of a connection may be on topics with {most} partitions in "
                "all: use more connections",
            )

    def drop_member(self, consumer_id: int) -> None:
        """A consumer is closed."""
        self._expected.pop(consumer_id, None)
        member = self.members.pop(consumer_id, None)
        if member is not None:
            member.leave()
            self._answer_former(member)

    def consumer_closed(self, consumer: Consumer) -> None:
        """A client closed a consumer. Of a segment that it was to keep, it closes it only to leave.

        The first clients of Pulsar 5 say no more than that.
        """
        name = consumer.subscription.topic.name
        topic, segment = str(name.base), max(name.partition, 0)
        for member in list(self.members.values()):
            key = member.group.key
            if (
                key.topic == topic
                and consumer.name == member.consumer_name(segment)
                and (not key.exclusive or key.subscription == consumer.subscription.name)
            ):
                member.closed(segment)
                self._drop_former()

    def _drop_former(self) -> None:
        """Forget consumers that have left, or came anew under another id."""
        for consumer_id, member in list(self.members.items()):
            if not member.is_current:
                del self.members[consumer_id]
                self._answer_former(member)

    def _answer_former(self, member: Member) -> None:
        """A client waits without end for the answer to its request."""
        self._untold.pop(member, None)
        if member.request_id is not None:
            self._output.send(notices.share_error(member.request_id, _closed(member.name)))
            member.request_id = None

    async def probe(self) -> bool:
        """Whether the client still answers; if not, its connection is closed."""
        return await self._probe()

    # -- what it is told ---

    def tell(self, thing: LookupSession | Member | NamespaceWatch) -> None:
        """Tell a client what there is then, as soon as it has read what it was told before."""
        self._untold[thing] = None
        if not self._tells:
            self._tells = True
            self._requests.run(self._tell_all(), NO_REQUEST)

    async def _tell_all(self) -> None:
        try:
            while self._untold:
                thing = next(iter(self._untold))
                del self._untold[thing]
                async with self._output.large_answer():
                    if isinstance(thing, LookupSession):
                        await self._tell_layout(thing)
                    elif isinstance(thing, NamespaceWatch):
                        await thing.say(self._output, self._frame_bytes_max)
                    else:
                        await self._tell_share(thing)
        finally:
            self._tells = False

    async def _tell_layout(self, session: LookupSession) -> None:
        topic = session.topic
        while topic is not None and not session.closed:
            layout = topic.layout
            assert layout is not None
            encode = partial(segment_fields, created_ms=layout.created_ms)
            segments = await _encoded(layout, range(len(layout)), encode)
            if layout is topic.layout:
                self._send_layout(session, layout, segments)
                return

    def _send_layout(self, session: LookupSession, layout: Layout, segments: list[bytes]) -> None:
        if session.closed:
            return
        frame = layout_frame(session.session_id, layout.resolved_name, layout.epoch, segments)
        if self._fits(frame):
            self._output.send_frame(frame)
        else:
            self.refuse_session(session.session_id, _too_large(layout))

    async def _tell_share(self, member: Member) -> None:
        while (due := member.to_tell()) is not None:
            layout, share = due
            segments = await _encoded(layout, share, assigned_fields)
            if member.to_tell() == due:
                self._send_share(member, layout, share, segments)
                return

    def _send_share(
        self, member: Member, layout: Layout, share: list[int], segments: list[bytes]
    ) -> None:
        request_id = member.request_id
        if request_id is None:
            frame = share_frame(member.consumer_id, layout.epoch, segments)
        else:
            frame = first_share_frame(request_id, layout.epoch, segments)
        if self._fits(frame):
            self._output.send_frame(frame)
            member.was_told(layout, share)
            return
        if request_id is not None:
            member.request_id = None
            self._output.send(notices.share_error(request_id, _too_large(layout)))
        member.leave()
        self._drop_former()

    def _fits(self, frame: list[bytes]) -> bool:
        return sum(map(len, frame)) <= self._frame_bytes_max

    # -- the end ---

    def close(self) -> None:
        """The client is gone. Its consumers may come back on another connection."""
        sessions, self.sessions = self.sessions, {}
        members, self.members = self.members, {}
        self._untold.clear()
        self._expected.clear()
        ends = chain(
            (session.close for session in sessions.values()),
            (member.lose for member in members.values()),
            self.watches.ends(),
        )
        self._run_queue.call_all(ends)


async def _encoded(
    layout: Layout, numbers: Sequence[int], encode: Callable[[Iterable[Segment]], bytes]
) -> list[bytes]:
    step = SEGMENTS_PER_TURN_MAX
    parts = (numbers[start : start + step] for start in range(0, len(numbers), step))
    return [encode(layout.segments(part)) async for part in in_turns(parts, 1)]


def _closed(name: str) -> ClientError:
    return ClientError(ServerError.ConsumerNotFound, f"Consumer {name!r} was closed meanwhile")


def _too_large(layout: Layout) -> ClientError:
    return ClientError(
        ServerError.NotAllowedError,
        f"The {len(layout)} segments of {layout.topic} do not fit a frame (maxMessageSize)",
    )
