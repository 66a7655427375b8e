"""A process that a supervisor started ends when the supervisor's end of its socket closes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from typing import Any

import pytest
import uvloop

from pulsark.errors import ConfigError
from pulsark.processes.child import ProcessLife, keep_descriptors


class Nothing:
    """A process that runs until it is stopped."""

    def __init__(self) -> None:
        self.stopped = False

    async def start(self) -> dict[str, Any]:
        return {}

    async def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("read_all", [True, False], ids=["read all", "left a beat unread"])
def test_it_ends_with_a_supervisor_that(read_all: bool) -> None:
    # The end of a socket that closes with something unread is an error for the other end.
    process = Nothing()

    async def live() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            life = asyncio.create_task(ProcessLife(theirs, lambda failed: process).live())
            ours.setblocking(False)
            read = await asyncio.get_running_loop().sock_recv(ours, 64)
            assert read.startswith(b'{"ready"')
            if not read_all:
                theirs.send(b"\n")
            ours.close()
            await asyncio.wait_for(life, 30)

    uvloop.run(live())
    assert process.stopped


class Unstartable(Nothing):
    """It has opened something when it finds that it cannot go on."""

    async def start(self) -> dict[str, Any]:
        raise OSError(24, "Too many open files")


def test_one_that_cannot_start_for_any_reason_is_stopped_in_order() -> None:
    process = Unstartable()

    async def live() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(OSError, match="Too many open files"):
            await ProcessLife(theirs, lambda failed: process).live()

    uvloop.run(live())
    assert process.stopped


def test_a_port_in_use_that_no_setting_names_is_said_to_be_that_of_this_broker() -> None:
    in_use = OSError(errno.EADDRINUSE, "Address already in use")

    async def told() -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            life = ProcessLife(theirs, lambda failed: Nothing())
            error = ConfigError.cannot_listen("brokerServicePort", ["::1"], 6660, in_use)
            life.tell_error(error, "broker-0")
            found: dict[str, Any] = json.loads(ours.recv(4096))
            return found

    found = uvloop.run(told())
    assert found["lasts"]
    assert found["error"] == (
        "brokerServicePort: port 6660 is in use; stop the other process or choose another (each "
        "of several brokers has ports of its own, and this is one of broker-0: docs/scaling.md)"
    )


def test_its_own_children_inherit_no_port_and_no_channel() -> None:
    # They would keep it open, also while nobody is left who accepts clients.
    output = [os.get_inheritable(descriptor) for descriptor in range(3)]
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.set_inheritable(True)  # as after the start of the process
        keep_descriptors()
        assert not port.get_inheritable()
    assert [os.get_inheritable(descriptor) for descriptor in range(3)] == output
