"""A process does not end before the client's threads have let go of its functions."""

from __future__ import annotations

import subprocess
import sys

from pulsark.admin_client.credentials import Credentials
from pulsark.admin_client.token_supplier import TokenSupplier, wait_until_let_go

ENDS = """
import atexit, sys, threading
from pulsark.admin_client.token_supplier import TokenSupplier

held = [TokenSupplier(str)]
end = threading.Event()

def client() -> None:
    end.wait()
    for _ in range(100):
        threading.Event().wait(0.001)  # time in which a process that does not wait is gone
    print("let go", flush=True)
    held.clear()

threading.Thread(target=client, daemon=True).start()
atexit.register(end.set)  # runs first, since it was registered last
"""


def test_what_a_client_holds_is_waited_for() -> None:
    held = [TokenSupplier(lambda: "t")]
    assert held[0]() == "t"
    assert not wait_until_let_go(rounds=2)
    held.clear()
    assert wait_until_let_go(rounds=1)


def test_a_process_ends_after_the_client_has_let_go() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "let go\n"


def test_a_token_that_never_changes_needs_no_function() -> None:
    class Library:
        AuthenticationToken = staticmethod(lambda token: token)

    fixed = Credentials("token", {"token": "t"}).for_client(Library)
    assert fixed["authentication"] == "t"
    from_file = Credentials("token", {"file": "/nowhere"}).for_client(Library)
    assert isinstance(from_file["authentication"], TokenSupplier)
