"""What one client of Pulsar 5 has open beside producers and consumers: its lookups.

Everything here ends with the connection, by reference and not by a coroutine's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import ClientError, ServerError
from pulsark.limits import (
    FRAME_OVERHEAD_BYTES,
    SCALABLE_SESSIONS_PER_CONNECTION_MAX,
    SEGMENTS_PER_TURN_MAX,
)
from pulsark.wire.layout_fields import layout_frame, segment_fields

if TYPE_CHECKING:
    from pulsark.dispatch.connection.connection import Connection
    from pulsark.dispatch.scalable.followed import FollowedTopic
    from pulsark.dispatch.scalable.layouts import Layout
    from pulsark.wire.topic_name import TopicName


class Session:
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
        self._client.tell(self)

    def close(self) -> None:
        """The client hears of it no more."""
        self.closed = True
        if self.topic is not None:
            self.topic.leave(self)


class ScalableClient:
    """Its sessions, each by the id that the client gave it."""

    def __init__(self, connection: Connection) -> None:
        self.sessions: dict[int, Session] = {}
        self._output = connection.output
        self._requests = connection.requests
        self._run_queue = connection.broker.run_queue
        self._followed = connection.broker.scalable_topics().followed
        self._frame_bytes_max = connection.settings.maxMessageSize + FRAME_OVERHEAD_BYTES
        self._untold: dict[Session, None] = {}
        self._tells = False

    # -- lookups ---

    def new_session(self, session_id: int) -> Session:
        """Begin a session, or raise ``ClientError``. ``open`` is what follows.

        It is known at once, so that a client that gives it up meanwhile finds it.
        """
        self.drop_session(session_id)
        most = SCALABLE_SESSIONS_PER_CONNECTION_MAX
        if len(self.sessions) >= most:
            raise ClientError(
                ServerError.TooManyRequests, f"A connection may look {most} topics up at a time"
            )
        session = self.sessions[session_id] = Session(self, session_id)
        return session

    async def open(self, session: Session, name: TopicName, *, create: bool) -> None:
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

    def tell(self, session: Session) -> None:
        """Tell a client the layout that there is then, as soon as it has read what it was told."""
        if session.topic is None or session.closed:
            return
        self._untold[session] = None
        if not self._tells:
            self._tells = True
            self._requests.run(self._tell_all(), notices.NO_REQUEST)

    async def _tell_all(self) -> None:
        try:
            while self._untold:
                session = next(iter(self._untold))
                del self._untold[session]
                async with self._output.large_answer():
                    await self._tell(session)
        finally:
            self._tells = False

    async def _tell(self, session: Session) -> None:
        topic = session.topic
        assert topic is not None
        while not session.closed:
            layout = topic.layout
            assert layout is not None
            segments = await _encoded(layout)
            if layout is topic.layout:
                self._send(session, layout, segments)
                return

    def _send(self, session: Session, layout: Layout, segments: list[bytes]) -> None:
        if session.closed:
            return
        frame = layout_frame(session.session_id, layout.resolved_name, layout.epoch, segments)
        size = sum(map(len, frame))
        if size > self._frame_bytes_max:
            text = f"The layout of {layout.topic} does not fit a frame: it has {size} bytes"
            self.refuse_session(session.session_id, ClientError(ServerError.NotAllowedError, text))
            return
        self._output.send_frame(frame)

    # -- the end ---

    def close(self) -> None:
        """The client is gone."""
        sessions, self.sessions = self.sessions, {}
        self._untold.clear()
        self._run_queue.call_all(session.close for session in sessions.values())


async def _encoded(layout: Layout) -> list[bytes]:
    count, step = len(layout), SEGMENTS_PER_TURN_MAX
    parts = (range(start, min(start + step, count)) for start in range(0, count, step))
    return [
        segment_fields(layout.segments(part), layout.created_ms)
        async for part in in_turns(parts, 1)
    ]
