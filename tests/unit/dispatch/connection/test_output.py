"""The sending half of a connection alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pulsark.dispatch.connection.output import Output
from pulsark.limits import UNREAD_OUTPUT_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb


class Socket:
    """Takes everything; ``unread`` of it waits for the client."""

    def __init__(self) -> None:
        self.written = b""
        self.unread = 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return self.unread


def with_output(test: Callable[[Output, Socket, list[str]], Any]) -> None:
    async def main() -> None:
        socket: Any = Socket()
        heard: list[str] = []
        output = Output(
            socket, 1 << 20, lambda: heard.append("write"), lambda: heard.append("room")
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
