"""If senergyctld refuses a request of a newer program, the error message names both releases."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import open_munge
import pytest
from test_response_proof import sealed

from slurm_energy import __version__
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.release_header import RELEASE_HEADER, advice_for_older

ADVICE = f"this program {__version__}: upgrade senergyctld"


@pytest.mark.parametrize(
    ("release", "advised"),
    [
        (None, "before 0.2"),
        ("0.1.7", "release 0.1.7"),
        (__version__, ""),
        ("9.1.0", ""),
        ("x\n", ""),
        ("", ""),
    ],
)
def test_only_an_earlier_minor_release_is_named(release, advised):
    advice = advice_for_older(release)
    assert advised in advice
    assert bool(advice) == bool(advised)


@contextlib.contextmanager
def answering(status, message, release, proof):
    """Start an HTTP server that refuses each request, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            credential = self.headers["Authorization"].removeprefix("MUNGE ")
            value = {"error": message, "code": 2}
            content = sealed(value, credential, status) if proof else b'{"error": "%s"}' % message.encode()
            self.send_response(status)
            if release:
                self.send_header(RELEASE_HEADER, release)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "proof", "error"), [(400, True, UsageError), (404, False, UnavailableError)]
)
@pytest.mark.parametrize(("release", "named"), [("0.1.0", True), (None, True), (__version__, False)])
def test_a_refusal_names_both_releases(monkeypatch, status, proof, error, release, named):
    open_munge.install(monkeypatch)
    with answering(status, "unknown parameter", release, proof) as url:
        client = ControllerClient(url, None, 10, [str(open_munge.CONTROLLER)])
        with pytest.raises(error, match="unknown parameter") as refusal:
            client.get("/v1/new")
    assert (ADVICE in str(refusal.value)) == named
