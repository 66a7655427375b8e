"""Reads of one node are shared, but only by those who asked before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from pulsark.errors import MetadataError
from pulsark.metadata.zookeeper.nodes import Node
from pulsark.metadata.zookeeper.shared_reads import SharedReads
from tests.support.memory_zookeeper import new_node


class Server:
    """Answers when the test says so, with what there was when it was asked."""

    def __init__(self) -> None:
        self.data = b"0"
        self.asked: list[tuple[str, Node, asyncio.Future[Node | None]]] = []
        self.reads = SharedReads(self.get)

    async def get(self, path: str) -> Node | None:
        future: asyncio.Future[Node | None] = asyncio.get_running_loop().create_future()
        self.asked.append((path, new_node(self.data, 0, 0), future))
        return await future

    async def ask(self, path: str = "/a") -> asyncio.Task[Node | None]:
        task = asyncio.create_task(self.reads.get(path))
        await turns()
        return task

    async def answer(self, error: Exception | None = None) -> None:
        _, node, future = self.asked.pop(0)
        if error is None:
            future.set_result(node)
        else:
            future.set_exception(error)
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def on_a_loop(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test())


def data(task: asyncio.Task[Node | None]) -> bytes:
    node = task.result()
    assert node is not None
    return node.data


@on_a_loop
async def test_who_asks_during_a_read_shares_the_next_one() -> None:
    server = Server()
    first = await server.ask()
    server.data = b"1"
    later = [await server.ask() for _ in range(9)]
    assert len(server.asked) == 1
    await server.answer()
    assert data(first) == b"0"
    assert not any(task.done() for task in later), "they may have written what they ask for"
    assert len(server.asked) == 1
    server.data = b"2"
    last = await server.ask()
    await server.answer()
    assert [data(task) for task in later] == [b"1"] * 9
    await server.answer()
    assert data(last) == b"2"
    assert not server.asked
    assert not server.reads._waiting


@on_a_loop
async def test_other_nodes_are_read_meanwhile() -> None:
    server = Server()
    for path in ("/a", "/b"):
        await server.ask(path)
    assert [path for path, *_ in server.asked] == ["/a", "/b"]
    for _ in range(2):
        await server.answer()


@on_a_loop
async def test_an_error_is_told_to_those_who_wait_for_that_read() -> None:
    server = Server()
    first, second = await server.ask(), await server.ask()
    await server.answer(MetadataError("not now"))
    with pytest.raises(MetadataError):
        await first
    third = await server.ask()
    await server.answer(MetadataError("not yet"))
    with pytest.raises(MetadataError, match="not yet"):
        await second
    await server.answer()
    assert data(third) == b"0"


@on_a_loop
async def test_who_goes_takes_no_answer_along() -> None:
    server = Server()
    first, second, third = [await server.ask() for _ in range(3)]
    first.cancel()
    second.cancel()
    await turns()
    assert len(server.asked) == 2, "the next read has begun"
    server.asked.pop(0)
    await server.answer()
    assert data(third) == b"0"
    fourth, fifth = await server.ask(), await server.ask()
    fifth.cancel()
    await server.answer()
    assert data(fourth) == b"0"
    assert not server.asked, "nobody waits for another read"
    assert not server.reads._waiting
