"""Groups of consumers of Pulsar 5: who is told what, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pulsark.dispatch.connection import scalable_client
from pulsark.dispatch.scalable.groups import GroupKey
from pulsark.dispatch.scalable.limits import (
    SEGMENT_HAND_OVER_SECONDS,
    SEGMENT_WAIT_SECONDS,
    SEGMENTS_PER_TURN_MAX,
    SHARE_REMINDER_SECONDS,
    SHARE_SILENCE_SECONDS,
    STREAM_CONSUMER_GRACE_SECONDS,
)
from pulsark.dispatch.scalable.shares import Shares
from pulsark.errors import CorruptMetadataError, MetadataError, ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import SHARED, BrokerInMemory, Client, Command, scenario

if TYPE_CHECKING:
    from pulsark.runtime import Clock

TOPIC = "persistent://public/default/p"
NAME = TopicName.parse(TOPIC)


async def create(broker: BrokerInMemory, partitions: int) -> None:
    await broker.broker.creation.create_partitioned_topic(NAME, partitions, {})


KINDS = pytest.mark.parametrize("kind", [pb.STREAM, pb.CHECKPOINT])


class Stream:
    """A client as those of Pulsar 5 are, with one stream consumer."""

    def __init__(
        self, broker: BrokerInMemory, name: str, client: Client | None = None, **fields: Any
    ) -> None:
        self.client = client or Client(broker)
        self.name = name
        self.consumer_id = fields.pop("consumer_id", 40)
        self.attached: dict[int, int] = {}
        self.share: list[int] = []
        self.kind = fields.pop("kind", pb.STREAM)
        command = Command(type=Command.SCALABLE_TOPIC_SUBSCRIBE)
        request = command.scalableTopicSubscribe
        request.request_id, request.topic = 900, fields.pop("topic", TOPIC)
        request.subscription = fields.pop("subscription", "s")
        request.consumer_name, request.consumer_id = name, self.consumer_id
        request.consumer_type = self.kind
        self.client.send(command)

    async def answer(self, seconds: float = 1.0) -> pb.CommandScalableTopicSubscribeResponse:
        kind = Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
        answer = await self.client.take(kind, seconds=seconds)
        found = answer.scalableTopicSubscribeResponse
        assert found.request_id == 900
        self.share = self._numbers(found.assignment)
        return found

    async def told(self, seconds: float = 1.0) -> list[int]:
        kind = Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE
        update = (await self.client.take(kind, seconds=seconds)).scalableTopicAssignmentUpdate
        assert update.consumer_id == self.consumer_id
        self.share = self._numbers(update.assignment)
        return self.share

    def _numbers(self, assignment: pb.ScalableConsumerAssignment) -> list[int]:
        for segment in assignment.segments:
            assert segment.segment_topic == f"{TOPIC}-partition-{segment.segment_id}"
            assert not segment.bucket_ranges
        return [segment.segment_id for segment in assignment.segments]

    async def obey(self) -> None:
        """Close what it lost and attach to what it got."""
        for number in sorted(self.attached.keys() - set(self.share)):
            await self.close(number)
        for number in sorted(set(self.share) - self.attached.keys()):
            assert await self.attach(number) == 0

    async def attach(self, number: int) -> int:
        consumer_id = self.consumer_id * 100 + number
        self.client.send(
            self.client.subscribe_command(
                f"{TOPIC}-partition-{number}",
                "s" if self.kind == pb.STREAM else f"reader-{self.name}",
                consumer_id=consumer_id,
                consumer_name=f"{self.name}-seg-{number}",
                durable=self.kind == pb.STREAM,
            )
        )
        code = await self.client.outcome(seconds=30)
        if code == 0:
            self.attached[number] = consumer_id
        return code

    async def close(self, number: int) -> None:
        self.client.send(self.client.close_command("consumer", self.attached.pop(number)))
        assert await self.client.outcome() == 0

    async def begin(self) -> Stream:
        """Registered, and on its segments."""
        answer = await self.answer(seconds=30)
        assert not answer.HasField("error"), answer
        await self.obey()
        return self


def unsubscribe_command(consumer_id: int) -> pb.BaseCommand:
    command = Command(type=Command.SCALABLE_TOPIC_UNSUBSCRIBE)
    command.scalableTopicUnsubscribe.request_id = 901
    command.scalableTopicUnsubscribe.consumer_id = consumer_id
    return command


@pytest.mark.command("SCALABLE_TOPIC_SUBSCRIBE", "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE")
@pytest.mark.command("SCALABLE_TOPIC_ASSIGNMENT_UPDATE")
@scenario()
async def test_a_second_consumer_gets_what_the_first_has_closed(broker) -> None:
    await create(broker, 4)
    one = Stream(broker, "one")
    answer = await one.answer()
    assert answer.assignment.layout_epoch == 4
    assert [(s.hash_start, s.hash_end) for s in answer.assignment.segments][1] == (16384, 32767)
    assert one.share == [0, 1, 2, 3]
    await one.obey()
    two = Stream(broker, "two")
    assert await one.told() == [0, 1]
    await asyncio.sleep(1)
    assert not two.client.has(Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    await one.obey()
    await two.answer()
    assert two.share == [2, 3]
    await two.obey()


@scenario()
async def test_consumers_wait_with_nothing_when_there_are_more_than_segments(broker) -> None:
    await create(broker, 1)
    one = await Stream(broker, "one").begin()
    two = await Stream(broker, "two").begin()
    assert (one.share, two.share) == ([0], [])
    one.client.hang_up()
    assert await two.told(seconds=STREAM_CONSUMER_GRACE_SECONDS + 1) == [0]


@scenario()
async def test_who_does_not_close_is_closed(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    answer = await two.answer(seconds=SEGMENT_HAND_OVER_SECONDS + 1)
    assert two.share == [1], answer
    closed = (await one.client.take(Command.CLOSE_CONSUMER)).close_consumer
    assert closed.consumer_id == one.attached[1]
    await two.obey()
    # Its client subscribes anew, as if it had been unloaded: the place is another one's.
    assert await one.attach(1) == ServerError.ConsumerBusy


@scenario()
async def test_a_consumer_that_comes_too_early_waits_for_the_former(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    attaching = asyncio.create_task(two.attach(1))
    await asyncio.sleep(SEGMENT_WAIT_SECONDS / 4)
    assert not attaching.done()
    await one.obey()
    assert await attaching == 0


@pytest.mark.command("SCALABLE_TOPIC_UNSUBSCRIBE")
@scenario()
async def test_leaving_is_noticed_at_once(broker) -> None:
    await create(broker, 4)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    await one.obey()
    await two.begin()
    one.client.send(unsubscribe_command(one.consumer_id), unsubscribe_command(77))
    for _ in range(2):
        assert (await one.client.take(Command.SUCCESS)).success.request_id == 901
    for number in list(one.attached):
        await one.close(number)
    assert await two.told() == [0, 2, 3] or two.share == [0, 1, 2, 3]
    while two.share != [0, 1, 2, 3]:
        await two.told()
    await two.obey()


@scenario()
async def test_closing_an_assigned_segment_is_leaving(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    await one.obey()
    await two.begin()
    await one.close(0)
    assert await two.told() == [0, 1]
    (group,) = broker.broker.scalable.groups.all()
    assert list(group.members) == ["two"]


@scenario()
async def test_a_client_that_comes_back_has_its_share(broker) -> None:
    await create(broker, 4)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    await one.obey()
    await two.begin()
    two.client.hang_up()
    await asyncio.sleep(STREAM_CONSUMER_GRACE_SECONDS / 2)
    again = await Stream(broker, "two", consumer_id=41).begin()
    assert again.share == [2, 3]
    await asyncio.sleep(STREAM_CONSUMER_GRACE_SECONDS * 2)
    assert not one.client.has(Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)


class EarlyTimers:
    """A clock that is a bit behind the loop's when a timer fires, and ahead of it soon after."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_at = -1.0

    def monotonic(self) -> float:
        at = self._clock.monotonic()
        is_first, self._read_at = at != self._read_at, at
        return at - 0.0005 if is_first else at + 0.0005

    def now_ms(self) -> int:
        return self._clock.now_ms()


@scenario()
async def test_no_deadline_is_missed_that_passes_while_others_are_looked_at(broker) -> None:
    broker.broker.clock = EarlyTimers(broker.broker.clock)
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    await one.obey()
    await two.begin()
    one.client.hang_up()
    assert await two.told(STREAM_CONSUMER_GRACE_SECONDS + 1) == [0, 1]


@scenario()
async def test_a_name_is_one_consumers(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    other = Stream(broker, "one")
    await asyncio.sleep(0.01)
    one.client.has(Command.PING)  # which it answers
    assert (await other.answer()).error == ServerError.ConsumerBusy
    one.client.mute = True
    again = Stream(broker, "one")
    assert not (await again.answer(seconds=10)).HasField("error")
    assert one.client.transport.closed
    await again.obey()


@scenario()
async def test_a_consumer_may_register_anew_on_its_connection(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    again = Stream(broker, "one", client=one.client, consumer_id=41)
    assert not (await again.answer()).HasField("error")
    assert again.share == [0, 1]
    assert list(one.client.connection.opened.scalable.members) == [41]


@scenario()
async def test_a_former_consumer_of_a_connection_does_not_take_a_laters_place(broker) -> None:
    await create(broker, 2)
    later = await Stream(broker, "one", consumer_id=41).begin()
    former = Stream(broker, "one", client=later.client, consumer_id=40)
    assert (await former.answer()).error == ServerError.ConsumerBusy
    await Stream(broker, "two").answer(seconds=SEGMENT_HAND_OVER_SECONDS + 1)
    assert await later.told() == [0]


@scenario()
async def test_those_who_are_on_segments_keep_them_when_the_broker_starts_anew(broker) -> None:
    await create(broker, 4)
    one, two = Stream.__new__(Stream), Stream.__new__(Stream)
    for each, name in ((one, "one"), (two, "two")):
        each.client, each.name, each.consumer_id = Client(broker), name, 40
        each.attached, each.share, each.kind = {}, [], pb.STREAM
    for number in (0, 2):
        assert await two.attach(number) == 0
    one = Stream(broker, "one", client=one.client)
    await one.answer()
    assert one.share == [1, 3]
    await one.obey()
    again = Stream(broker, "two", client=two.client)
    await again.answer()
    assert again.share == [0, 2]
    assert not one.client.has(Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)


@scenario()
async def test_readers_share_with_those_of_their_group_alone(broker) -> None:
    await create(broker, 2)
    await Stream(broker, "stream").begin()
    await Stream(broker, "other", kind=pb.CHECKPOINT, subscription="g").begin()
    one = await Stream(broker, "one", kind=pb.CHECKPOINT, subscription="h").begin()
    assert one.share == [0, 1]


@scenario()
async def test_more_partitions_are_shared_and_have_the_subscription_first(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    await one.obey()
    await two.begin()
    await broker.broker.creation.add_partitions(NAME, 6)
    assert await one.told() == [0, 2, 5]
    assert await two.told() == [1, 3, 4]
    for number in range(2, 6):
        assert list(broker.broker.topics.get(NAME.with_partition(number)).subscriptions) == ["s"]
    await one.obey()
    await two.obey()


@pytest.mark.parametrize("damaged", [False, True])
def test_more_partitions_are_told_once_they_have_the_subscription(damaged: bool) -> None:
    """Else who starts at the end would miss what others write there meanwhile. What is damaged does
    not keep the others back."""

    @scenario()
    async def told(broker) -> None:
        await create(broker, 2)
        one = await Stream(broker, "one").begin()
        subscribing = broker.broker.scalable_topics().groups._subscribing
        ensure, tries = subscribing.ensure_subscription, []

        async def not_at_once(topic: Any, name: str) -> None:
            tries.append(topic.name.partition)
            if damaged and topic.name.partition == 2:
                raise CorruptMetadataError("its record is damaged")
            if len(tries) < 3:
                raise MetadataError("the store does not answer")
            await ensure(topic, name)

        subscribing.ensure_subscription = not_at_once
        await broker.broker.creation.add_partitions(NAME, 4)
        assert await one.told(seconds=10) == [0, 1, 2, 3]
        assert tries == ([2, 3] * 2 if damaged else [2, 2, 2, 3])
        topic = broker.broker.topics.get(NAME.with_partition(3))
        assert list(topic.subscriptions) == ["s"]

    told()


@scenario()
async def test_readers_of_a_checkpoint_group_share_without_a_pause(broker) -> None:
    await create(broker, 4)
    one = await Stream(broker, "one", kind=pb.CHECKPOINT).begin()
    two = Stream(broker, "two", kind=pb.CHECKPOINT)
    await two.answer()
    assert two.share == [2, 3]
    assert await one.told() == [0, 1]
    await one.obey()
    await two.obey()
    await two.close(2)
    assert await one.told() == [0, 1, 2, 3]
    assert await Stream(broker, "one").answer()  # of another group


@KINDS
def test_who_does_not_attach_is_told_once_more(kind: int) -> None:
    """Pulsar 5's first clients drop what they are told before they have attached to the rest."""

    @scenario()
    async def told_again(broker) -> None:
        await create(broker, 2)
        one = await Stream(broker, "one", kind=kind).begin()
        two = Stream(broker, "two", kind=kind)
        assert await one.told() == [0]
        await one.obey()
        await two.begin()
        await one.close(0)
        assert await two.told() == [0, 1]
        assert await two.told(seconds=2 * SHARE_REMINDER_SECONDS + 1) == [0, 1]
        await two.obey()
        await asyncio.sleep(15)
        assert not two.client.has(Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)

    told_again()


@KINDS
def test_who_says_nothing_is_passed_over(kind: int) -> None:
    """Those clients close a consumer that is on no segment without a word."""

    @scenario()
    async def passed_over(broker) -> None:
        await create(broker, 1)
        one = await Stream(broker, "one", kind=kind).begin()
        closed = await Stream(broker, "a", kind=kind).begin()
        other = await Stream(broker, "b", kind=kind).begin()
        await one.close(0)
        assert await closed.told() == [0]
        wait = SHARE_REMINDER_SECONDS + SHARE_SILENCE_SECONDS + 1
        assert await other.told(seconds=wait) == [0]
        await other.obey()
        # It is not closed after all, and there is nobody else.
        await asyncio.sleep(15)
        while closed.client.has(Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE):
            await closed.told()
        assert closed.share == []
        await other.close(0)
        assert await closed.told() == [0]
        await closed.obey()

    passed_over()


@scenario()
async def test_very_many_that_say_nothing_keep_nobody_waiting(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    await one.obey()
    await two.begin()
    for number in range(20):
        await Stream(broker, f"closed{number}").begin()
    idle = await Stream(broker, "z").begin()
    await one.close(0)
    assert await two.told() == [0, 1]
    await two.obey()
    (segment,) = await idle.told()
    coming = asyncio.create_task(idle.attach(segment))
    assert await two.told() == [1 - segment]
    await two.obey()
    assert await coming == 0
    await two.close(1 - segment)
    assert await idle.told() == [0, 1]


@scenario()
async def test_who_was_passed_over_and_attaches_is_a_consumer_like_others(broker) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    two = Stream(broker, "two")
    await one.told()
    await one.obey()
    await two.answer()
    assert two.share == [1]
    await asyncio.sleep(SHARE_REMINDER_SECONDS + SHARE_SILENCE_SECONDS + 1)
    assert await one.told() == [0, 1]
    await one.obey()
    # It was told that it lost that, and closes it as soon as it has it.
    assert await two.attach(1) == ServerError.ConsumerBusy
    assert await one.told() == [0]
    await one.obey()
    while two.share != [1] or two.client.has(Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE):
        await two.told()
    assert await two.attach(1) == 0


@scenario()
async def test_who_cannot_attach_to_one_segment_keeps_the_others(broker) -> None:
    await create(broker, 2)
    old = Client(broker)
    assert await old.subscribe(f"{TOPIC}-partition-1", "s", kind=SHARED) == 0
    one = Stream(broker, "one")
    await one.answer()
    assert await one.attach(0) == 0
    assert await one.attach(1) == ServerError.ConsumerBusy
    two = Stream(broker, "two")
    await two.answer(seconds=30)
    assert await one.told() == [0]
    await asyncio.sleep(15)
    (group,) = broker.broker.scalable.groups.all()
    assert group.shares.owner(0) == "one"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": f"{TOPIC}-partition-0"}, ServerError.TopicNotFound),
        ({"topic": "non-persistent://public/default/p"}, ServerError.NotAllowedError),
        ({"topic": "topic://public/none/p"}, ServerError.TopicNotFound),
        ({"topic": "x/y"}, ServerError.InvalidTopicName),
        ({"subscription": ""}, ServerError.ProducerBusy),
        ({"name": "n" * 1025}, ServerError.NotAllowedError),
        ({"name": ""}, ServerError.NotAllowedError),
    ],
)
def test_what_cannot_be_shared_is_refused(fields: dict[str, str], code: int) -> None:
    @scenario()
    async def refused(broker) -> None:
        await create(broker, 1)
        name = fields.get("name", "one")
        others = {key: value for key, value in fields.items() if key != "name"}
        answer = await Stream(broker, name, **others).answer()
        assert answer.error == code
        scalable = broker.broker.scalable_topics()
        assert list(scalable.groups.all()) == []
        assert len(scalable.followed) == 0

    refused()


@scenario()
async def test_old_consumers_exclude_stream_consumers(broker) -> None:
    await create(broker, 1)
    queue = Client(broker)
    assert await queue.subscribe(f"{TOPIC}-partition-0", "s", kind=SHARED) == 0
    one = Stream(broker, "one")
    await one.answer()
    assert await one.attach(0) == ServerError.ConsumerBusy


@scenario()
async def test_nothing_is_left_of_those_who_went(broker) -> None:
    await create(broker, 3)
    clients = [await Stream(broker, "a").begin()]
    for name in "bcd":
        new = Stream(broker, name)
        await asyncio.sleep(0.1)
        for client in clients:
            while client.client.has(Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE):
                await client.told()
            await client.obey()
        clients.append(await new.begin())
    for client in clients:
        client.client.hang_up()
    await asyncio.sleep(STREAM_CONSUMER_GRACE_SECONDS + SEGMENT_HAND_OVER_SECONDS)
    assert list(broker.broker.scalable.groups.all()) == []
    assert len(broker.broker.scalable.followed) == 0


@scenario()
async def test_a_connection_has_consumers_on_so_many_segments(
    broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalable_client, "SCALABLE_SEGMENTS_PER_CONNECTION_MAX", 10)
    await create(broker, 4)
    client = Client(broker)
    for number in range(3):
        one = Stream(broker, "one", client=client, consumer_id=number, subscription=f"s{number}")
        error = (await one.answer()).error
        assert error == (ServerError.TooManyRequests if number == 2 else 0)
    await asyncio.sleep(0.01)
    groups = broker.broker.scalable.groups.all()
    assert sorted(group.key.subscription for group in groups) == ["s0", "s1"]


@scenario()
async def test_very_many_segments_are_handed_over_with_few_looks(
    broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(broker, 2 * SEGMENTS_PER_TURN_MAX)
    one = Stream(broker, "one")
    await one.answer()
    looks = 0
    shares = Shares.shares

    def counted(self: Shares) -> dict[str, list[int]]:
        nonlocal looks
        looks += 1
        return shares(self)

    monkeypatch.setattr(Shares, "shares", counted)
    (group,) = broker.broker.scalable.groups.all()
    two = Stream(broker, "two")
    await one.told()
    for number in range(SEGMENTS_PER_TURN_MAX, 2 * SEGMENTS_PER_TURN_MAX):
        group.members["one"].closed(number)
        if number % 25 == 0:
            await asyncio.sleep(0.001)
    await two.answer()
    assert len(two.share) == SEGMENTS_PER_TURN_MAX
    assert looks < 20


@scenario()
async def test_a_connection_has_so_many_consumers(broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalable_client, "SCALABLE_CONSUMERS_PER_CONNECTION_MAX", 3)
    await create(broker, 1)
    client = Client(broker)
    for number in range(3):
        Stream(broker, f"c{number}", client=client, consumer_id=number)
        await client.take(Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    one = Stream(broker, "one", client=client, consumer_id=3)
    assert (await one.answer()).error == ServerError.TooManyRequests
    client.send(unsubscribe_command(2))
    one = Stream(broker, "one", client=client, consumer_id=3)
    assert not (await one.answer()).HasField("error")


@scenario()
async def test_of_two_who_want_a_dead_consumers_name_one_gets_it(broker) -> None:
    """Both have waited until the former one's connection did not answer; none waits for ever."""
    await create(broker, 2)
    former = await Stream(broker, "one").begin()
    former.client.mute = True
    both = [Stream(broker, "one"), Stream(broker, "one")]
    seconds = 4 * broker.broker.settings.keepAliveIntervalSeconds
    answers = await asyncio.gather(*(stream.answer(seconds) for stream in both))
    assert sorted(answer.error for answer in answers) == [0, ServerError.ConsumerBusy]
    (alive,) = (stream for stream, answer in zip(both, answers, strict=True) if not answer.error)
    assert alive.share == [0, 1]


@scenario()
async def test_a_registration_is_answered_if_the_one_in_its_place_is_given_up(
    broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(broker, 2)
    gate, count = asyncio.Event(), broker.broker.creation.partition_count

    async def slowly(*given: Any, **fields: Any) -> int:
        await gate.wait()
        return await count(*given, **fields)

    monkeypatch.setattr(broker.broker.creation, "partition_count", slowly)
    client = Client(broker)
    first, second = (Stream(broker, "one", client, consumer_id=number) for number in (1, 2))
    client.send(unsubscribe_command(2))
    gate.set()
    for stream in (first, second):
        assert (await stream.answer(seconds=30)).error == ServerError.ConsumerNotFound


@scenario()
async def test_what_concerns_one_topic_does_not_go_through_the_groups_of_all(
    broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(broker, 2)
    one = await Stream(broker, "one").begin()
    groups = broker.broker.scalable_topics().groups
    other = TopicName.parse("persistent://public/default/other")
    follow = GroupKey(str(other), "s", True)
    member = await groups.join(follow, other, "x", one.client.connection.opened.scalable, 7, 8)

    def all_of_them() -> None:
        raise AssertionError("there may be very many")

    monkeypatch.setattr(groups, "all", all_of_them)
    assert len(broker.broker.scalable.stats(NAME)["groups"]) == 1
    await broker.broker.creation.add_partitions(NAME, 4)
    assert await one.told() == [0, 1, 2, 3]
    member.leave()
    await asyncio.sleep(0.1)
    assert (groups.of(other), len(groups.of(NAME))) == ([], 1)
    one.client.hang_up()
    await asyncio.sleep(STREAM_CONSUMER_GRACE_SECONDS + SEGMENT_HAND_OVER_SECONDS + 1)
    assert (groups.of(NAME), groups._of_topics) == ([], {})
