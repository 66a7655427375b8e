"""``pulsark topics seal``, whose answer takes as long as sealing does."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pulsark.admin_client.client import AdminClient, AdminError
from pulsark.cli import main
from pulsark.cli.admin import access, topics

TABLE = {"uri": "file:///tables/t", "rows": 1234}


class Slow(ThreadingHTTPServer):
    """Has sealed when it was asked three times how far it is; the first time there is no table."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.asked = 0
        self.sealed = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Request(BaseHTTPRequestHandler):
    server: Slow

    def do_POST(self) -> None:
        assert self.server.sealed.wait(60)
        self._answer(204, b"")

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.asked == 1:
            self._answer(404, b'{"reason": "Nothing of the topic is sealed yet"}')
        elif self.server.asked == 2:
            self._answer(503, b'{"reason": "not now"}')
        else:
            self._answer(200, json.dumps(TABLE).encode())
            self.server.sealed.set()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def slow() -> Iterator[Slow]:
    with Slow() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.sealed.set()
        server.shutdown()
        thread.join()


def test_it_is_waited_for_and_says_how_far_it_is(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = []

    def client(url: str, timeout_s: float | None = 30.0) -> AdminClient:
        limits.append(timeout_s)
        return access.admin_client(url, timeout_s)

    monkeypatch.setattr(topics, "admin_client", client)
    monkeypatch.setattr(topics, "PROGRESS_SECONDS", 0.001)
    monkeypatch.setattr(sys, "argv", ["pulsark", "topics", "seal", "t", "--admin-url", slow.url])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    out, err = capsys.readouterr()
    assert out == f"{TABLE['uri']}\n"
    said = err.splitlines()
    assert said[0] == "sealing: 0 rows are in the table"
    assert said[1] == f"{slow.url} answered 503: not now"
    assert None in limits


def test_an_answer_that_takes_too_long(slow: Slow) -> None:
    with pytest.raises(AdminError, match="timed out"):
        AdminClient(slow.url, timeout_s=0.01).call("POST", "/persistent/public/default/t/seal")
