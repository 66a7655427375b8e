"""The admission of consumers: what SUBSCRIBE asks for, and whether it may be."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.model.subscription_type import (
    PlaceTakenError,
    SubscriptionClosedError,
    SubType,
    TypeSpec,
)
from pulsark.dispatch.policies.schemas import from_wire
from pulsark.dispatch.subscription.hash_ranges import SlotRanges
from pulsark.dispatch.topics.subscribe_rates import Subscriber, SubscribeRates
from pulsark.errors import ClientError, ServerError
from pulsark.schemas.definition import SchemaType
from pulsark.storage.cursor.owners import check_new_name
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.message_id import position_of
from pulsark.wire.position import EARLIEST, LATEST
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.client import Client
    from pulsark.dispatch.model.interfaces import AnySubscription, AnyTopic
    from pulsark.dispatch.topics.creation import TopicCreation
    from pulsark.dispatch.topics.schema_admission import SchemaAdmission
    from pulsark.runtime import Clock

_Key = TypeVar("_Key")

_SINGLE_ACTIVE = (SubType.Exclusive, SubType.Failover)


class Subscribing:
    """Admits consumers to the subscriptions of a broker's topics."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        creation: TopicCreation,
        schema_admission: SchemaAdmission,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._creation = creation
        self._schema_admission = schema_admission
        self._rates = SubscribeRates(clock)
        self._unnamed = 0
        self._expected: Counter[AnyTopic] = Counter()
        """Consumers of topics whose subscriptions are being made."""
        self._expected_of_host: Counter[tuple[AnyTopic, str]] = Counter()
        """Expected consumers by address."""

    async def ensure_subscription(self, topic: AnyTopic, name: str) -> None:
        """Make sure that a durable subscription exists; a new one starts at Earliest."""
        check_new_name(name)
        if name not in topic.subscriptions:
            if not topic.policies.allow_auto_subscription_creation:
                raise ClientError(
                    ServerError.NotAllowedError, f"Subscription {name} may not be created"
                )
            await topic.registry.create(name, EARLIEST, {}, durable=True)

    async def subscribe(self, client: Client, request: pb.CommandSubscribe) -> Consumer:
        """Admit a consumer. The subscription exists durably when this returns."""
        check_new_name(request.subscription)
        name = TopicName.parse(request.topic)
        spec = self._wanted_type(request, name)
        _key_ranges(request, spec)
        topic = await self._creation.topic_for_clients(
            name, may_create=request.force_topic_creation
        )
        if spec.sub_type.name not in topic.policies.subscription_types:
            raise ClientError(
                ServerError.NotAllowedError,
                f"{spec.sub_type.name} subscriptions are not enabled on {name}",
            )
        if name.is_persistent:
            identity = request.consumer_name, request.consumer_id
            subscriber = Subscriber(str(name), client.host, *identity)
            self._rates.check(subscriber, topic.policies.subscribe_rate)
        self._check_room_in_topic(topic, client.host)
        schema = from_wire(request.schema) if request.HasField("schema") else None
        await self._schema_admission.of_consumer(topic, schema)
        while True:
            topic.check_open()
            subscription: AnySubscription | None
            subscription = topic.subscriptions.get(request.subscription)
            if subscription is None:
                # A consumer is refused before its subscription is made, which else would stay
                # unused; nothing is awaited from its creation to the consumer.
                with self._place_in_topic(topic, client.host), client.holdings.place_for_consumer():
                    subscription = await self._create_subscription(topic, request)
            else:
                subscription.check_joinable(durable=request.durable)
            try:
                async with subscription.members.changing:
                    return await self._join(client, request, subscription, spec)
            except SubscriptionClosedError:
                continue  # it was deleted while this one waited
            except BaseException:
                subscription.drop_if_abandoned()
                raise

    def _wanted_type(self, request: pb.CommandSubscribe, name: TopicName) -> TypeSpec:
        sub_type = SubType(request.subType)
        if request.read_compacted and not (sub_type in _SINGLE_ACTIVE and name.is_persistent):
            raise ClientError(
                ServerError.NotAllowedError,
                "read_compacted is for Exclusive and Failover subscriptions of persistent topics",
            )
        if sub_type == SubType.Key_Shared:
            if not self._settings.subscriptionKeySharedEnable:
                raise ClientError(
                    ServerError.NotAllowedError,
                    "Key_Shared subscriptions are disabled here (subscriptionKeySharedEnable)",
                )
            meta = request.keySharedMeta
            sticky = meta.keySharedMode == pb.KeySharedMode.STICKY
            return TypeSpec(sub_type, sticky, meta.allowOutOfOrderDelivery)
        return TypeSpec(sub_type)

    async def _join(
        self,
        client: Client,
        request: pb.CommandSubscribe,
        subscription: AnySubscription,
        spec: TypeSpec,
    ) -> Consumer:
        """Add a consumer, all or nothing. The caller holds ``subscription.members.changing``.

        ``SubscriptionClosedError``: whatever was awaited, the subscription is not there any more.
        """
        subscription.members.check_admits()
        if request.replicate_subscription_state and subscription.durable:
            await subscription.properties.set_replicated(True)
        self._check_room(subscription, client.host)
        consumer = self._new_consumer(client, request, subscription, spec)
        await self._admit(subscription, consumer, spec)
        try:
            if request.start_message_rollback_duration_sec:
                back_ms = request.start_message_rollback_duration_sec * 1000
                await subscription.seeking.rollback(self._clock.now_ms() - back_ms)
            subscription.topic.check_open()
            subscription.members.check_admits()
        except BaseException:
            subscription.remove_consumers((consumer,))
            raise
        return consumer

    async def _create_subscription(
        self, topic: AnyTopic, request: pb.CommandSubscribe
    ) -> AnySubscription:
        if (
            request.durable
            and topic.name.is_persistent
            and not topic.policies.allow_auto_subscription_creation
        ):
            raise ClientError(
                ServerError.SubscriptionNotFound,
                f"Subscription {request.subscription} does not exist",
            )
        earliest = request.initialPosition == pb.CommandSubscribe.Earliest
        position = EARLIEST if earliest else LATEST
        if not request.durable and request.HasField("start_message_id"):
            position = topic.reader_start(position_of(request.start_message_id), position)
        return await topic.registry.create(
            request.subscription,
            position,
            {p.key: p.value for p in request.subscription_properties},
            durable=request.durable,
            compacted=request.read_compacted,
            replicated=request.replicate_subscription_state,
        )

    async def _admit(
        self, subscription: AnySubscription, consumer: Consumer, spec: TypeSpec
    ) -> None:
        while True:
            try:
                subscription.use_type(spec)
                subscription.add_consumer(consumer)
                return
            except PlaceTakenError as error:
                # The holder's connection may be half dead: ask, and try again if it is.
                if await error.holder.connection.probe() and not error.holder.closed:
                    raise
                subscription.topic.check_open()
                subscription.remove_consumers((error.holder,))

    @contextmanager
    def _place_in_topic(self, topic: AnyTopic, host: str) -> Iterator[None]:
        """Count a consumer of a topic meanwhile. ``ClientError``: there are too many."""
        self._check_room_in_topic(topic, host)
        self._expected[topic] += 1
        self._expected_of_host[topic, host] += 1
        try:
            yield
        finally:
            _count_down(self._expected, topic)
            _count_down(self._expected_of_host, (topic, host))

    def _check_room_in_topic(self, topic: AnyTopic, host: str) -> None:
        """Refuse a consumer that would be one too many for a topic, or for its address."""
        policies = topic.policies
        most, most_of_host = policies.max_consumers, policies.max_same_address_consumers
        if most > 0:
            there = sum(s.type.consumer_count for s in topic.subscriptions.values())
            if there + self._expected[topic] >= most:
                raise ClientError(ServerError.ConsumerBusy, "Topic reached max consumers limit")
        if most_of_host > 0:
            there = sum(
                consumer.connection.host == host
                for subscription in topic.subscriptions.values()
                for consumer in subscription.type.consumers
            )
            if there + self._expected_of_host[topic, host] >= most_of_host:
                raise ClientError(
                    ServerError.ConsumerBusy, "Topic reached max same address consumers limit"
                )

    def _check_room(self, subscription: AnySubscription, host: str) -> None:
        """Refuse a consumer that would be one too many."""
        self._check_room_in_topic(subscription.topic, host)
        most = subscription.topic.policies.max_consumers_per_subscription
        if 0 < most <= subscription.type.consumer_count:
            raise ClientError(ServerError.ConsumerBusy, "Subscription reached max consumers limit")

    def _new_consumer(
        self,
        client: Client,
        request: pb.CommandSubscribe,
        subscription: AnySubscription,
        spec: TypeSpec,
    ) -> Consumer:
        has_schema = request.HasField("schema")
        # The epoch tells what was sent before a redelivery from what comes after it; where
        # messages are redelivered one by one, or not at all, there is none.
        has_epoch = (
            request.HasField("consumer_epoch")
            and spec.sub_type in _SINGLE_ACTIVE
            and subscription.topic.name.is_persistent
        )
        self._unnamed += 1
        return Consumer(
            subscription,
            client,
            request.consumer_id,
            request.consumer_name or f"consumer-{self._unnamed}",
            priority=request.priority_level,
            read_compacted=request.read_compacted,
            epoch=request.consumer_epoch if has_epoch else None,
            metadata={m.key: m.value for m in request.metadata},
            schema_type=SchemaType.from_wire(request.schema.type) if has_schema else None,
            key_ranges=_key_ranges(request, spec),
            connected_since_ms=self._clock.now_ms(),
        )


def _count_down(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _key_ranges(request: pb.CommandSubscribe, spec: TypeSpec) -> Collection[tuple[int, int]]:
    """Return the ranges that a consumer may name in its type; ``ClientError`` for invalid ones."""
    given = request.keySharedMeta.hashRanges
    if spec.sticky or (spec.sub_type == SubType.Exclusive and given):
        return SlotRanges([(each.start, each.end) for each in given])
    return ()
