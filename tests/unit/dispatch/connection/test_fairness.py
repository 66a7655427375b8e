"""What one client asks for does not keep the others waiting."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from pulsark.dispatch.loop.run_queue import Lane, RunQueue
from pulsark.limits import (
    INTAKE_SECONDS,
    POSTPONED_SECONDS,
    RECEIVED_BYTES_MAX,
    REQUESTS_PER_TURN_MAX,
    REQUESTS_UNDER_WAY_MAX,
    TURN_SECONDS,
)
from pulsark.wire.frames import RECEIVE_BYTES, encode_command
from tests.support.broker_clients import TOPIC, Client, Command, held, scenario
from tests.support.ticking_clock import LOOK_SECONDS, make_busy
from tests.support.wire_frames import publish


def ping() -> bytes:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return encode_command(command)


def pongs(client: Client) -> int:
    client._read()
    return sum(answer.type == Command.PONG for answer in client.answers)


@scenario()
async def test_others_are_answered_before_a_flood_is_done(broker) -> None:
    make_busy(broker)
    flooder, other = Client(broker), Client(broker)
    await asyncio.sleep(0.01)
    flooder.send_bytes(ping() * 1000)
    flooder.connection.output.flush()
    assert 0 < pongs(flooder) < 100
    assert flooder.transport.paused
    other.send_bytes(ping())
    await asyncio.sleep(0)
    assert pongs(other) == 1
    assert pongs(flooder) < 500
    await asyncio.sleep(1)
    assert not flooder.transport.paused
    assert pongs(flooder) == 1000


@scenario()
async def test_a_handshake_in_pieces_goes_on_after_a_long_turn(broker) -> None:
    clock = make_busy(broker)
    client = Client(broker, handshake=False)
    command = Command(type=Command.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = 21
    whole = encode_command(command)
    queue = client.connection.broker.run_queue
    queue.deadline = clock.monotonic  # nothing is left of the turn
    client.send_bytes(whole[:7])
    del queue.deadline
    assert client.transport.paused
    client.send_bytes(whole[7:])
    await client.take(Command.CONNECTED)


@scenario()
async def test_many_floods_together_take_no_longer_turns_than_one(broker) -> None:
    clock = make_busy(broker)
    flooders = [Client(broker) for _ in range(20)]
    for flooder in flooders:
        flooder.send_bytes(ping() * 500)
    turns = []
    while any(flooder.transport.paused for flooder in flooders):
        before = clock.spent
        await asyncio.sleep(0)
        turns.append(clock.spent - before)
    assert max(turns) < INTAKE_SECONDS
    await asyncio.sleep(0)
    assert [pongs(flooder) for flooder in flooders] == [500] * 20


@scenario()
async def test_first_commands_of_very_many_connections_share_a_turn(broker) -> None:
    clock = make_busy(broker)
    late, timely = [Client(broker) for _ in range(400)], Client(broker)
    await asyncio.sleep(0.01)
    before = clock.spent
    for client in late:
        client.send_bytes(ping())
    turns = [clock.spent - before]
    assert 0 < sum(client.transport.paused for client in late) < len(late)
    await asyncio.sleep(0)
    turns.append(clock.spent - before - turns[0])
    timely.send_bytes(ping())
    timely.connection.output.flush()
    assert pongs(timely) == 1
    assert any(client.transport.paused for client in late)
    while any(client.transport.paused for client in late):
        before = clock.spent
        await asyncio.sleep(0)
        turns.append(clock.spent - before)
    # Asking whether the turn is over takes time on this clock, too.
    assert max(turns) < 1.25 * INTAKE_SECONDS + (len(late) + 1) * LOOK_SECONDS
    assert max(turns[2:]) < 2 * (TURN_SECONDS + POSTPONED_SECONDS)
    await asyncio.sleep(0)
    assert [pongs(client) for client in late] == [1] * len(late)


@scenario()
async def test_postponed_commands_do_not_stand_in_the_way_of_deliveries(broker) -> None:
    make_busy(broker)
    queue, done = broker.broker.run_queue, []
    for number in range(1000):
        queue.postpone(lambda number=number: done.append(number), Lane.LIGHT)
    queue.call(lambda: done.append("delivery"))
    await asyncio.sleep(0)
    assert done[0] == "delivery"
    assert 1 < len(done) < 100
    await asyncio.sleep(1)
    assert done[1:] == list(range(1000))


@scenario()
async def test_a_flood_is_carried_out_in_order(broker) -> None:
    make_busy(broker)
    client = Client(broker)
    await client.produce(TOPIC, 0)
    client.send_bytes(b"".join(publish(1, number, b"x") for number in range(500)))
    client.send(client.close_command("producer"))
    assert await client.outcome() == 0
    receipts = [a.send_receipt for a in client.answers if a.type == Command.SEND_RECEIPT]
    assert [receipt.sequence_id for receipt in receipts] == list(range(500))


@scenario()
async def test_reads_of_one_turn_share_its_time(broker) -> None:
    make_busy(broker)
    client = Client(broker)
    await asyncio.sleep(0.01)
    reads = 0
    while not client.transport.paused:
        client.send_bytes(ping())
        reads += 1
        assert reads < 3 * TURN_SECONDS / LOOK_SECONDS
    await asyncio.sleep(0.01)
    assert not client.transport.paused
    assert pongs(client) == reads > 1


@scenario()
async def test_a_large_frame_is_read_in_shorter_turns(broker) -> None:
    make_busy(broker)
    client = Client(broker)
    await client.produce(TOPIC, 1)
    frame = publish(1, 0, bytes(1 << 20))
    client.send_bytes(frame[: 256 << 10])
    sent, reads = 256 << 10, 0
    while not client.transport.paused:
        client.send_bytes(frame[sent : sent + 4096])
        sent, reads = sent + 4096, reads + 1
    assert reads <= TURN_SECONDS / 4 / LOOK_SECONDS + 1
    client.send_bytes(frame[sent:])
    assert (await client.take(Command.SEND_RECEIPT)).send_receipt.sequence_id == 0
    assert not client.transport.paused


@scenario()
async def test_who_sends_too_much_at_a_time_is_read_in_smaller_pieces(broker) -> None:
    make_busy(broker)
    client = Client(broker)
    assert len(client.connection.get_buffer(-1)) == RECEIVE_BYTES
    for halvings in range(1, 5):
        client.send_bytes(ping() * 50)
        assert len(client.connection.get_buffer(-1)) == RECEIVE_BYTES >> halvings
        await asyncio.sleep(1)
        client._read()


@scenario()
async def test_few_requests_begin_at_a_time(broker) -> None:
    client = Client(broker)
    ask = Command(type=Command.LOOKUP)
    ask.lookupTopic.topic, ask.lookupTopic.request_id = TOPIC, 1
    client.send(*[ask] * 2000)
    assert len(client.connection.requests) == REQUESTS_PER_TURN_MAX
    await asyncio.sleep(0.1)
    client._read()
    assert sum(answer.type == Command.LOOKUP_RESPONSE for answer in client.answers) == 2000
    assert not client.transport.paused


@scenario()
async def test_no_more_requests_begin_in_a_turn_of_the_run_queue(broker) -> None:
    client = Client(broker)
    begun, run = [0], client.connection.requests.run

    def counted(work, request_id):
        begun[-1] += 1
        return run(work, request_id)

    client.connection.requests.run = counted
    ask = Command(type=Command.LOOKUP)
    ask.lookupTopic.topic, ask.lookupTopic.request_id = TOPIC, 1
    client.send(*[ask] * 100)
    while sum(begun) < 100:
        begun.append(0)
        await asyncio.sleep(0)
    assert max(begun) == REQUESTS_PER_TURN_MAX


@scenario()
async def test_requests_that_wait_for_storage_are_bounded_within_one_read(broker) -> None:
    client = Client(broker)
    await client.produce(TOPIC, 0)
    most = REQUESTS_UNDER_WAY_MAX
    with held(broker):
        commands = [client.subscribe_command(TOPIC, f"s{n}", n) for n in range(2 * most)]
        client.send(*commands)
        await asyncio.sleep(0.1)
        assert len(client.connection.requests) == most
        assert client.transport.paused
    await asyncio.sleep(0.1)
    assert len(client.connection.opened.consumers) == 2 * most
    assert not client.transport.paused


@pytest.mark.parametrize("end", ["hang_up", "broken frame"])
def test_what_a_closed_connection_had_sent_is_not_carried_out(end) -> None:
    @scenario()
    async def run(broker) -> None:
        make_busy(broker)
        client = Client(broker)
        await client.produce(TOPIC, 0)
        frames = b"".join(publish(1, number, b"x") for number in range(500))
        if end == "hang_up":
            client.send_bytes(frames)
            client.hang_up()
        else:
            client.send_bytes(publish(1, 0, b"x") + b"\xff" * 100 + frames)
        await asyncio.sleep(1)
        (topic,) = broker.broker.topics.loaded()
        assert not topic.is_used
        assert topic.ledger.entries < 100
        assert client.transport.closed

    run()


def test_a_fair_share_is_shorter_where_others_wait() -> None:
    @dataclasses.dataclass
    class Stopped:
        def monotonic(self) -> float:
            return 7.0

    @scenario()
    async def run(broker) -> None:
        queue = RunQueue(Stopped())  # type: ignore[arg-type]
        assert queue.deadline() == 7.0 + 2 * TURN_SECONDS
        queue.call(lambda: None)
        assert queue.deadline() == 7.0 + TURN_SECONDS / 4

    run()


@scenario()
async def test_who_sends_little_does_not_wait_behind_very_many_who_send_much(broker) -> None:
    make_busy(broker)
    floods, other = [Client(broker) for _ in range(300)], Client(broker)
    await asyncio.sleep(0.01)
    for flooder in floods:
        flooder.send_bytes(ping() * 500)
    other.send_bytes(ping())
    turns = 0
    while not pongs(other):
        await asyncio.sleep(0)
        turns += 1
    assert turns <= 8
    assert sum(flooder.transport.paused for flooder in floods) > 250


@scenario()
async def test_the_more_clients_the_less_each_may_read_at_a_time(broker) -> None:
    first = Client(broker)
    assert len(first.connection.get_buffer(-1)) == RECEIVE_BYTES
    others = [Client(broker) for _ in range(255)]
    assert len(first.connection.get_buffer(-1)) == RECEIVED_BYTES_MAX // 256
    for other in others:
        other.hang_up()
    await asyncio.sleep(0.1)
    assert len(first.connection.get_buffer(-1)) == RECEIVE_BYTES
