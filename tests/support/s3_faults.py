"""A proxy in front of an object store: requests pass, fail, hang, or lose their answers.

It passes on whole requests, so that a test can say of each what becomes of it: whether the store
gets it, and whether the client hears of it.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal

Fault = Literal["pass", "refused", "denied", "gone", "lost", "cut", "hang"]
"""``refused``: 503. ``denied``: 403. ``gone``: the connection ends before the store has the
request, ``lost``: after that, before the answer, ``cut``: in the middle of it. ``hang``: no answer
at all."""

Rule = Callable[[str, str], Fault]
"""By method and path of a request."""


def everything_passes(method: str, path: str) -> Fault:
    """The rule at first."""
    return "pass"


class FaultyStore:
    """The proxy; ``rule`` may be changed at any time. ``seen`` has what arrived."""

    def __init__(self, port: int) -> None:
        self.rule: Rule = everything_passes
        self.seen: list[tuple[str, str]] = []
        self.ended = threading.Event()
        """Set, what hangs is let go."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.partition("?")[0]
                proxy.seen.append((self.command, path))
                fault = proxy.rule(self.command, path)
                if fault in ("refused", "denied"):
                    status, code = (
                        (503, "SlowDown") if fault == "refused" else (403, "AccessDenied")
                    )
                    text = f"<Error><Code>{code}</Code></Error>".encode()
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(b"" if self.command == "HEAD" else text)
                    return
                if fault == "hang":
                    proxy.ended.wait(60)
                if fault in ("hang", "gone"):
                    self.close_connection = True
                    return
                store = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                store.request(self.command, self.path, body, dict(self.headers))
                found = store.getresponse()
                content = found.read()
                store.close()
                if fault == "lost":
                    self.close_connection = True
                    return
                self.send_response(found.status)
                for name, value in found.getheaders():
                    if name.lower() not in ("transfer-encoding", "date", "connection"):
                        self.send_header(name, value)
                if found.getheader("Content-Length") is None and self.command != "HEAD":
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if fault == "cut":
                    content, self.close_connection = content[: len(content) // 2], True
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                pass  # the client is gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def next(self, *faults: Fault, method: str = "PUT") -> None:
        """The next requests with this method have these faults, one each; further ones pass."""
        waiting = list(faults)

        def rule(asked: str, path: str) -> Fault:
            return waiting.pop(0) if waiting and asked == method else "pass"

        self.rule = rule

    def let_go(self) -> None:
        """Everything passes, and what hangs ends."""
        self.rule = everything_passes
        self.ended.set()
        self.ended = threading.Event()

    def __enter__(self) -> FaultyStore:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
