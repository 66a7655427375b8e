"""Stream consumers of Pulsar 5 as its clients are, and what must be true of what they get.

They only send what their clients send and do what they are told, one step at a time, so that the
same ones can be driven in virtual time and over sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Protocol

from pulsark.wire import pulsar_pb2 as pb
from tests.support.broker_clients import Client
from tests.support.wire_frames import Received

Command = pb.BaseCommand
TOPIC = "persistent://public/default/shared"
SUBSCRIPTION = "s"
_ids = count(1)


class Wire(Protocol):
    """One connection."""

    def send(self, *commands: pb.BaseCommand) -> None: ...

    def arrived(self) -> Iterable[tuple[pb.BaseCommand, Received | None]]:
        """What came since."""

    def hang_up(self) -> None: ...


class InMemory:
    """To a broker in virtual time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.send = client.send
        self.hang_up = client.hang_up

    def arrived(self) -> Iterator[tuple[pb.BaseCommand, Received | None]]:
        client = self._client
        client._read()
        commands, client.answers = client.answers, []
        deliveries, client._deliveries = iter(client._deliveries), []
        for command in commands:
            yield command, next(deliveries) if command.type == Command.MESSAGE else None


class Truth:
    """What was published, who is where, and what was acknowledged. Payloads are numbers."""

    def __init__(self, partitions: int) -> None:
        self.published = [0] * partitions
        self.acked = [-1] * partitions
        """The highest number that somebody acknowledged."""
        self.holders: list[StreamConsumer | None] = [None] * partitions
        self.deliveries = 0
        self.hand_overs = 0
        self.last_holder: list[str] = [""] * partitions

    @property
    def is_complete(self) -> bool:
        """Whether all that was published is acknowledged: none was lost."""
        return all(a == p - 1 for a, p in zip(self.acked, self.published, strict=True))

    def attached(self, consumer: StreamConsumer, segment: int) -> None:
        holder = self.holders[segment]
        if holder is not None and holder is not consumer:
            holder.step()  # it may have been told to go and not have read that yet
            holder = self.holders[segment]
        assert holder is None, f"{consumer.name} is on {segment}, and {holder.name} is too"
        self.holders[segment] = consumer
        self.hand_overs += self.last_holder[segment] not in ("", consumer.name)
        self.last_holder[segment] = consumer.name

    def left(self, consumer: StreamConsumer, segment: int) -> None:
        if self.holders[segment] is consumer:
            self.holders[segment] = None


class _OnSegment:
    """A consumer's consumer of a segment."""

    def __init__(self, consumer_id: int, segment: int) -> None:
        self.consumer_id = consumer_id
        self.segment = segment
        self.attached = False
        self.last: int | None = None
        """The last number that came."""


class StreamConsumer:
    """One that shares the segments, over one connection."""

    def __init__(self, name: str, wire: Wire, truth: Truth, *, stubborn: bool = False) -> None:
        """``stubborn``: it closes nothing that it lost."""
        self.name = name
        self.stubborn = stubborn
        self.consumer_id = next(_ids)
        self.share: set[int] | None = None
        self._wire = wire
        self._truth = truth
        self._segments: dict[int, _OnSegment] = {}
        self._by_consumer: dict[int, _OnSegment] = {}
        self._asked: dict[int, _OnSegment | None] = {}
        self.join()

    # -- what it does by itself ---

    def join(self) -> None:
        command = Command(type=Command.SCALABLE_TOPIC_SUBSCRIBE)
        request = command.scalableTopicSubscribe
        request.request_id, request.topic, request.subscription = self._asks(None), TOPIC, "s"
        request.consumer_name, request.consumer_id = self.name, self.consumer_id
        request.consumer_type = pb.STREAM
        self._wire.send(command)

    def leave(self, *, clean: bool) -> None:
        """Close. Old clients say nothing, they only close what they have."""
        if clean or not self._segments:
            command = Command(type=Command.SCALABLE_TOPIC_UNSUBSCRIBE)
            command.scalableTopicUnsubscribe.request_id = self._asks(None)
            command.scalableTopicUnsubscribe.consumer_id = self.consumer_id
            self._wire.send(command)
        for segment in list(self._segments):
            self._close(segment)

    def vanish(self) -> None:
        """Its connection is lost."""
        for segment in self._segments:
            self._truth.left(self, segment)
        self._segments.clear()
        self._by_consumer.clear()
        self._wire.hang_up()

    # -- what it is told ---

    def step(self) -> None:
        """Take what has come, and do that."""
        for command, message in self._wire.arrived():
            self._take(command, message)

    def _take(self, command: pb.BaseCommand, message: Received | None) -> None:
        if command.type == Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE:
            answer = command.scalableTopicSubscribeResponse
            if answer.HasField("error"):
                self.join()  # its former connection is still asked whether it is there
            else:
                self._obey(answer.assignment)
        elif command.type == Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            assert command.scalableTopicAssignmentUpdate.consumer_id == self.consumer_id
            self._obey(command.scalableTopicAssignmentUpdate.assignment)
        elif command.type == Command.SUCCESS:
            self._answered(self._asked.pop(command.success.request_id))
        elif command.type == Command.ERROR:
            on = self._asked.pop(command.error.request_id)
            if on is not None and self._segments.get(on.segment) is on:
                # Its client would never try it again.
                has = self.share is not None and on.segment in self.share
                assert not has, f"{self.name}: {on.segment}: {command.error.message}"
                self._forget(on)
        elif command.type == Command.CLOSE_CONSUMER:
            on = self._by_consumer.get(command.close_consumer.consumer_id)
            if on is not None:
                self._forget(on)
                if self.share is not None and on.segment in self.share:
                    self._subscribe(on.segment)  # as if the topic had been unloaded
        elif message is not None:
            self._got(message)

    def _obey(self, assignment: pb.ScalableConsumerAssignment) -> None:
        self.share = {segment.segment_id for segment in assignment.segments}
        for segment in sorted(self._segments.keys() - self.share):
            if not self.stubborn:
                self._close(segment)
        for segment in sorted(self.share - self._segments.keys()):
            self._subscribe(segment)

    def _subscribe(self, segment: int) -> None:
        on = self._segments[segment] = _OnSegment(next(_ids), segment)
        self._by_consumer[on.consumer_id] = on
        command = Command(type=Command.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription = f"{TOPIC}-partition-{segment}", SUBSCRIPTION
        request.subType = pb.CommandSubscribe.Exclusive
        request.consumer_id, request.request_id = on.consumer_id, self._asks(on)
        request.consumer_name = f"{self.name}-seg-{segment}"
        request.initialPosition = pb.CommandSubscribe.Earliest
        self._wire.send(command)

    def _answered(self, on: _OnSegment | None) -> None:
        if on is not None and self._segments.get(on.segment) is on:
            on.attached = True
            self._truth.attached(self, on.segment)
            flow = Command(type=Command.FLOW)
            flow.flow.consumer_id, flow.flow.messagePermits = on.consumer_id, 100_000
            self._wire.send(flow)

    def _got(self, message: Received) -> None:
        on = self._by_consumer.get(message.message.consumer_id)
        if on is None:
            return  # on its way when it was closed
        truth, segment, number = self._truth, on.segment, int(message.payload)
        assert truth.holders[segment] is self
        if on.last is None:
            assert number <= truth.acked[segment] + 1, f"{segment} goes on at {number}"
        else:
            assert number <= on.last + 1, f"{segment}: {number} after {on.last}"
        on.last = number if on.last is None else max(on.last, number)
        truth.deliveries += 1
        ack = Command(type=Command.ACK)
        ack.ack.consumer_id, ack.ack.ack_type = on.consumer_id, pb.CommandAck.Cumulative
        ack.ack.message_id.add().CopyFrom(message.message.message_id)
        self._wire.send(ack)
        truth.acked[segment] = max(truth.acked[segment], number)

    # -- how ---

    def _asks(self, on: _OnSegment | None) -> int:
        number = next(_ids)
        self._asked[number] = on
        return number

    def _close(self, segment: int) -> None:
        on = self._segments[segment]
        self._forget(on)
        command = Command(type=Command.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = on.consumer_id
        command.close_consumer.request_id = self._asks(None)
        self._wire.send(command)

    def _forget(self, on: _OnSegment) -> None:
        del self._segments[on.segment], self._by_consumer[on.consumer_id]
        self._truth.left(self, on.segment)
