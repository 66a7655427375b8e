"""What a broker's process has from its supervisor stays in it."""

from __future__ import annotations

import os
import socket

from pulsark.processes.broker_process import shared_sockets


def test_its_own_children_inherit_no_shared_port() -> None:
    # They would keep it open, also while nobody is left who accepts clients.
    with socket.create_server(("127.0.0.1", 0)) as of_supervisor:
        descriptor = os.dup(of_supervisor.fileno())
        os.set_inheritable(descriptor, True)  # as after the start of the process
        found = shared_sockets({"webServicePort": [descriptor], "webServicePortTls": []})
        with found["webServicePort"][0] as shared:
            assert shared.getsockname() == of_supervisor.getsockname()
            assert not shared.get_inheritable()
        assert found["webServicePortTls"] == []
