"""Fake server, run by another user, that impersonates senergyctld.

The test decides each response.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

NOBODY = 65534
Answer = Callable[[str, bytes], tuple[int, bytes]]


class _Server(HTTPServer):
    allow_reuse_address = True

    def handle_error(self, *_: object) -> None:
        """Ignore the error, because a client may close the connection early."""


@contextlib.contextmanager
def listening(port: int, answer: Answer) -> Iterator[Callable[[], None]]:
    """Serve HTTP as user nobody. Yield a function that waits until one more request is answered.

    Args:
        port: TCP port on the loopback interface.
        answer: function that returns status and body of the response, given the credential and the
            body of the request.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answer(self.headers["Authorization"].removeprefix("MUNGE "), body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            os.write(events_write, b"r")

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            return

    events_read, events_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            server = _Server(("127.0.0.1", port), Handler)
            os.write(events_write, b"x")
            server.serve_forever()
        finally:
            os._exit(1)
    os.close(events_write)
    try:
        with os.fdopen(events_read, "rb", buffering=0) as events:
            assert events.read(1) == b"x"

            def wait() -> None:
                assert select.select([events], [], [], 60)[0], "no request came"
                assert events.read(1) == b"r"

            yield wait
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
