"""Clients that do anything at any time: nothing breaks, and nothing is lost for those after them.

Every run is a seed; a failure prints it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from pulsark.limits import READER_GRACE_SECONDS
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.position import Position
from pulsark.wire.topic_name import TopicName
from tests.sim.simulation import Simulation
from tests.support.broker_clients import BrokerInMemory, Client, Command, held, replicate
from tests.support.wire_frames import publish

TOPICS = ["persistent://public/default/a", "persistent://public/default/b"]
STEPS = 60
SEEDS = 12
SMALL = {
    "managedLedgerMaxEntriesPerLedger": 4,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "maxUnackedMessagesPerConsumer": 6,
    "maxUnackedMessagesPerSubscription": 10,
}


class Chaos:
    """Some clients, and the next thing one of them does."""

    def __init__(self, broker: BrokerInMemory, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.clients = [Client(broker) for _ in range(3)]
        self.ids: list[tuple[int, int]] = [(2**64 - 1, 2**64 - 1), (2**63 - 1, 2**63 - 1)]
        self.request = 1000
        self.sequence = 0

    async def step(self) -> None:
        rng = self.rng
        client = rng.choice(self.clients)
        if client.transport.closed:
            self.clients.remove(client)
            self.clients.append(client := Client(self.broker))
        act = rng.choice(ACTIONS)
        if act in (Chaos.unload, Chaos.stall):
            await act(self, client)
        else:
            act(self, client)
        if rng.random() < 0.7:
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01, 1]))
        for each in self.clients:
            each._read()
            for answer in each.answers:
                if answer.type == Command.SEND_RECEIPT:
                    receipt = answer.send_receipt.message_id
                    self.ids.append((receipt.ledgerId, receipt.entryId))
                assert "Internal error" not in answer.error.message, answer
            each.answers.clear()

    def place(self) -> tuple[int, int]:
        ledger_id, entry_id = self.rng.choice(self.ids)
        shift = self.rng.choice([0, 0, 0, 1, -1, 2**40])
        return ledger_id, max(0, min(entry_id + shift, 2**64 - 1))

    def numbers(self) -> tuple[int, int]:
        self.request += 1
        return self.rng.randrange(3), self.request

    def produce(self, client: Client) -> None:
        number, _ = self.numbers()
        name = self.rng.choice(["", "p", "q"])
        client.send(client.producer_command(self.rng.choice(TOPICS), name, number))

    def publish(self, client: Client) -> None:
        for number in list(client.connection.opened.producers):
            for _ in range(self.rng.randrange(4)):
                self.sequence += 1
                batch = {"num_messages_in_batch": 3} if self.rng.random() < 0.4 else {}
                marker = {"marker_type": 1} if self.rng.random() < 0.1 else {}
                replicate(client, number)
                data = publish(number, self.sequence, b"x" * 24, **batch, **marker)
                client.send_bytes(data)

    def subscribe(self, client: Client) -> None:
        rng = self.rng
        fields: dict[str, Any] = {"kind": rng.randrange(4), "durable": rng.random() < 0.6}
        if rng.random() < 0.3:
            fields["start"] = self.place()
        if rng.random() < 0.2:
            fields["start_message_rollback_duration_sec"] = rng.choice([1, 2**63])
        name = rng.choice(["s", "u"]) if fields["durable"] else rng.choice(["r", "v", "s"])
        number, _ = self.numbers()
        client.send(client.subscribe_command(rng.choice(TOPICS), name, number, **fields))

    def flow(self, client: Client) -> None:
        client.flow(self.rng.choice([1, 3, 1000, 2**32 - 1]), self.numbers()[0])

    def ack(self, client: Client) -> None:
        rng = self.rng
        words = rng.choice([(), (), (5,), (-1, 3), (0,)])
        command = client.ack_command(self.place(), cumulative=rng.random() < 0.3, ack_set=words)
        command.ack.consumer_id = self.numbers()[0]
        client.send(command)

    def redeliver(self, client: Client) -> None:
        command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = command.redeliverUnacknowledgedMessages
        request.consumer_id = self.numbers()[0]
        for _ in range(self.rng.randrange(3)):
            ledger_id, entry_id = self.place()
            request.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        client.send(command)

    def seek(self, client: Client) -> None:
        number, _ = self.numbers()
        command = client.seek_command(self.place(), number)
        if self.rng.random() < 0.3:
            command.seek.ClearField("message_id")
            command.seek.message_publish_time = self.rng.choice([0, 1, 2**64 - 1])
        client.send(command)

    def unsubscribe(self, client: Client) -> None:
        command = Command(type=Command.UNSUBSCRIBE)
        request = command.unsubscribe
        request.consumer_id, request.request_id = self.numbers()
        request.force = self.rng.random() < 0.5
        client.send(command)

    def close(self, client: Client) -> None:
        kind = self.rng.choice(["consumer", "producer"])
        client.send(client.close_command(kind, self.numbers()[0]))

    def last_id(self, client: Client) -> None:
        command = Command(type=Command.GET_LAST_MESSAGE_ID)
        request = command.getLastMessageId
        request.consumer_id, request.request_id = self.numbers()
        client.send(command)

    def hang_up(self, client: Client) -> None:
        client.hang_up()

    def go_silent(self, client: Client) -> None:
        client.mute = not client.mute

    async def unload(self, client: Client) -> None:
        name = TopicName.parse(self.rng.choice(TOPICS))
        unloading = asyncio.ensure_future(self.broker.broker.topics.unload(name))
        if self.rng.random() < 0.5:
            await unloading

    async def stall(self, client: Client) -> None:
        with held(self.broker):
            for _ in range(self.rng.randrange(1, 5)):
                self.rng.choice(SYNC)(self, self.rng.choice(self.clients))
                await asyncio.sleep(self.rng.choice([0, 0.001]))


SYNC = [
    *[Chaos.produce] * 2,
    *[Chaos.publish] * 3,
    *[Chaos.subscribe] * 4,
    *[Chaos.flow] * 3,
    *[Chaos.ack] * 4,
    *[Chaos.redeliver] * 2,
    *[Chaos.seek] * 2,
    Chaos.unsubscribe,
    *[Chaos.close] * 2,
    Chaos.last_id,
    Chaos.hang_up,
    Chaos.go_silent,
]
ACTIONS: list[Any] = [*SYNC, Chaos.unload, *[Chaos.stall] * 3]


def check_subscriptions(broker: BrokerInMemory) -> None:
    """What must be true whenever nothing is under way."""
    for topic in broker.broker.topics.loaded():
        for subscription in topic.subscriptions.values():
            held_by = [p for c in subscription.type.consumers for p in c.pending]
            assert len(held_by) == len(set(held_by))
            assert subscription.dispatcher.unacked.messages == sum(
                c.unacked for c in subscription.type.consumers
            )
            for consumer in subscription.type.consumers:
                assert consumer.connection.is_open
                assert consumer.connection.opened.consumers[consumer.consumer_id] is consumer
                assert consumer.unacked == sum(consumer.pending.values())


async def check_delivery(broker: BrokerInMemory) -> None:
    """A newcomer to each durable subscription gets exactly what is not acknowledged."""
    for text in TOPICS:
        topic = broker.broker.topics.get_loaded(TopicName.parse(text))
        if topic is None:
            continue
        assert all(s.cursor.durable for s in topic.subscriptions.values()), "a reader's is left"
        for name, subscription in list(topic.subscriptions.items()):
            assert not subscription.type.consumers
            state = subscription.cursor.state
            unacked = [
                Position(info.ledger_id, entry_id)
                for info in topic.ledger.ledgers()
                for entry_id in range(info.entries)
                if not state.is_acked(Position(info.ledger_id, entry_id))
            ]
            assert subscription.cursor.backlog() == len(unacked)
            entries = [(await topic.entries.read(place, 1, 1))[0] for place in unacked]
            wanted = [tuple(entry.position) for entry in entries if not entry.marker]
            client = Client(broker)
            assert await client.subscribe(text, name, kind=pb.CommandSubscribe.Shared) == 0
            for place in wanted:
                assert await client.received(1) == [place]
                client.send(client.ack_command(place))
            await asyncio.sleep(0.1)
            assert not client.has(Command.MESSAGE)
            assert subscription.cursor.backlog() == 0
            client.hang_up()


@pytest.mark.parametrize("batch_index", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_anything_at_any_time(seed: int, batch_index: bool, caplog: Any) -> None:
    with Simulation(seed) as sim:
        broker = BrokerInMemory(sim, acknowledgmentAtBatchIndexLevelEnabled=batch_index, **SMALL)
        if seed % 2:
            broker.broker.loader.cache_budget.max_bytes = 0  # everything is read from storage

        async def main() -> None:
            await broker.start()
            chaos = Chaos(broker, random.Random(seed))
            for _ in range(STEPS):
                await chaos.step()
            await asyncio.sleep(12)
            check_subscriptions(broker)
            for client in chaos.clients:
                client.hang_up()
            await asyncio.sleep(READER_GRACE_SECONDS + 10)
            await check_delivery(broker)
            assert broker.broker.loader.cache_budget.at_hand_bytes == 0

        with caplog.at_level(logging.ERROR):
            sim.run(main())
        assert not caplog.records
