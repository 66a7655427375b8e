"""The sending half of a connection alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pulsark.dispatch.connection.output import Output
from pulsark.dispatch.output_buffer import OutputBuffer
from pulsark.limits import UNREAD_OUTPUT_BYTES_COUNTED, UNREAD_OUTPUT_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb


class Socket:
    """Takes everything; ``unread`` of it waits for the client."""

    def __init__(self) -> None:
        self.written = b""
        self.unread = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return self.unread


def with_output(test: Callable[[Output, Socket, list[str]], Any]) -> None:
    async def main() -> None:
        socket: Any = Socket()
        heard: list[str] = []
        output = Output(
            socket,
            1 << 20,
            OutputBuffer(0),
            lambda: heard.append("write"),
            lambda: heard.append("room"),
        )
        await test(output, socket, heard)

    asyncio.run(main())


def ping() -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.PING)
    command.ping.SetInParent()
    return command


def test_bytes_leave_together_at_the_end_of_a_turn() -> None:
    async def test(output: Output, socket: Socket, heard: list[str]) -> None:
        output.write(b"a")
        output.write_message(b"b", b"c")
        assert not socket.written
        await asyncio.sleep(0)
        assert socket.written == b"abc"
        assert not heard

    with_output(test)


def test_too_many_messages_in_one_turn_wait_for_the_next() -> None:
    async def test(output: Output, socket: Socket, heard: list[str]) -> None:
        assert output.write_message(b"", bytes(UNREAD_OUTPUT_BYTES_MAX))
        assert not output.write_message(b"", b"x")
        output.flush()
        assert heard == ["room"]
        assert output.write_message(b"", b"x")

    with_output(test)


def test_each_write_to_a_client_that_lags_is_told() -> None:
    async def test(output: Output, socket: Socket, heard: list[str]) -> None:
        output.lags = True
        output.write_now(b"x")
        assert heard == ["write"]
        assert output.takes_answers
        socket.unread = 1 << 30
        assert not output.takes_answers

    with_output(test)


def test_the_next_large_answer_waits_until_the_one_before_was_read() -> None:
    async def test(output: Output, socket: Socket, heard: list[str]) -> None:
        begun = []

        async def answer(number: int) -> None:
            async with output.large_answer():
                begun.append(number)

        output.lags = True
        answers = [asyncio.create_task(answer(number)) for number in (1, 2)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert begun == [1]
        output.catch_up()
        await asyncio.gather(*answers)
        assert begun == [1, 2]

    with_output(test)


def test_what_is_queued_may_leave_after_the_end_and_nothing_is_added() -> None:
    async def test(output: Output, socket: Socket, heard: list[str]) -> None:
        output.write(b"before")
        output.lags = True
        output.close()
        output.send(ping())
        output.send_frame([b"x"])
        output.flush()
        assert socket.written == b"before"
        assert not heard, "nothing refers to the connection any more"
        output.write(b"x")
        output.drop()
        await asyncio.sleep(0)
        assert socket.written == b"before"

    with_output(test)


def behind(socket: Socket, output: Output, unread: int) -> None:
    """As the socket does it that does not take so many bytes."""
    socket.unread = unread
    assert unread > socket.high
    output.fall_behind()


def made(buffer: OutputBuffer) -> tuple[Socket, Output]:
    socket: Any = Socket()
    return socket, Output(socket, 1 << 20, buffer, lambda: None, lambda: None)


def test_what_waits_for_a_client_counts_until_it_is_read_or_dropped() -> None:
    async def test(*_: Any) -> None:
        buffer = OutputBuffer(1 << 30)
        (one_socket, one), (two_socket, two) = made(buffer), made(buffer)
        behind(one_socket, one, 100_000)
        behind(two_socket, two, 200_000)
        assert buffer.bytes == 300_000
        two_socket.unread = 250_000
        two.write_now(b"x")
        assert buffer.bytes == 350_000
        assert not two.lags
        one.catch_up()
        assert buffer.bytes == 250_000
        two.drop()
        assert buffer.bytes == 0

    with_output(test)


def test_a_client_that_leaves_a_mebibyte_unread_lags_until_a_quarter_of_it_is_left() -> None:
    async def test(output: Output, socket: Socket, heard: list[str]) -> None:
        behind(socket, output, UNREAD_OUTPUT_BYTES_MAX)
        assert not output.lags
        socket.unread += 1
        output.write_now(b"x")
        assert output.lags
        assert heard == ["write"]
        assert socket.high == UNREAD_OUTPUT_BYTES_MAX, "a socket goes on at a quarter of it"
        output.catch_up()
        assert socket.high == UNREAD_OUTPUT_BYTES_COUNTED

    with_output(test)


def test_while_too_much_waits_for_all_each_gets_one_message_and_no_other_before_it_was_read() -> (
    None
):
    async def test(*_: Any) -> None:
        buffer = OutputBuffer(1 << 20)
        (slow_socket, slow), (socket, output) = made(buffer), made(buffer)
        behind(slow_socket, slow, (1 << 20) + 1)
        assert buffer.is_full
        assert not output.write_message(b"", b"x"), "no further one in this turn"
        output.flush()
        assert not output.lags, "its socket took it"
        output.write_message(b"", b"x")
        behind(socket, output, UNREAD_OUTPUT_BYTES_COUNTED + 1)
        assert output.lags
        slow.catch_up()
        output.catch_up()
        assert not buffer.bytes
        assert output.write_message(b"", b"x")

    with_output(test)
