"""Tests that clients find the active one of several controllers.

Munge is replaced by a substitute; the connections are real.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import threading

import open_munge
import pytest

from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError
from slurm_energy.protocol import controller_client, controller_endpoint
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.response_proof import ResponseSeal

PASSIVE = (503, {"error": "passive; the active controller is http://b:1", "role": "passive"})


@pytest.fixture(autouse=True)
def _munge(monkeypatch):
    open_munge.install(monkeypatch)
    monkeypatch.setattr(controller_client, "_preferred", {})
    monkeypatch.setattr(controller_endpoint, "_RETRY_PAUSES_S", (0.0, 0.0, 0.0))


class StandIn(http.server.ThreadingHTTPServer):
    """Test substitute for a controller that gives the same response to every request."""

    daemon_threads = True

    def __init__(self):
        self.status, self.answer, self.proves, self.requests = 200, {"ok": True}, True, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(self.path)
        credential = self.headers["Authorization"].removeprefix("MUNGE ")
        seal, content = ResponseSeal(credential, self.server.status), json.dumps(self.server.answer)
        if self.server.proves:
            seal.update(content[:-1].encode())
            content = content[:-1] + seal.tail(None).decode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def two():
    with contextlib.ExitStack() as stack:
        servers = [StandIn(), StandIn()]
        for server in servers:
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield servers


def client(*urls, **bounds):
    return ControllerClient(urls, None, 5.0, [str(open_munge.CONTROLLER)], **bounds)


def test_a_passive_controller_is_passed_over_and_the_active_one_remembered(two):
    passive, active = two
    passive.status, passive.answer = PASSIVE
    for _ in range(3):
        assert client(passive.url, active.url).get("/v1/status") == {"ok": True}
    assert (len(passive.requests), len(active.requests)) == (1, 3)
    passive.status, passive.answer = 200, {"ok": 2}  # the roles change
    active.status, active.answer = PASSIVE
    assert client(passive.url, active.url).get("/v1/status") == {"ok": 2}
    assert client(passive.url, active.url).get("/v1/status") == {"ok": 2}
    assert (len(passive.requests), len(active.requests)) == (3, 4)


def test_a_controller_that_is_down_or_an_impostor_is_passed_over(two):
    impostor, active = two
    impostor.proves = False
    with socket.create_server(("127.0.0.1", 0)) as closed:
        down = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert client(down, impostor.url, active.url).post("/v1/records", {"items": []}) == {"ok": True}
    assert len(impostor.requests) == 1


def test_a_refused_credential_is_not_the_last_word(two):
    two[0].proves, two[0].status, two[0].answer = False, 401, {"error": "Expired credential"}
    assert client(two[0].url, two[1].url).get("/v1/status") == {"ok": True}
    two[1].proves, two[1].status, two[1].answer = False, 401, {"error": "Expired credential"}
    with pytest.raises(ForbiddenError, match="Expired credential"):
        client(two[0].url, two[1].url).get("/v1/status")


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFoundError), (403, ForbiddenError), (503, UnavailableError)]
)
def test_an_error_of_the_active_controller_is_final(two, status, kind):
    two[0].status, two[0].answer = status, {"error": "database x: disk full", "code": 4}
    with pytest.raises(kind, match=r"^database x: disk full$"):
        client(two[0].url, two[1].url).get("/v1/status")
    assert not two[1].requests


def test_without_an_active_controller_the_error_names_both(two):
    two[0].status, two[0].answer = PASSIVE
    two[1].status, two[1].answer = PASSIVE
    with pytest.raises(UnavailableError) as raised:
        client(two[0].url, two[1].url).get("/v1/status")
    assert "\n" not in str(raised.value)
    assert f"{two[0].url}: passive" in str(raised.value) and f"{two[1].url}: passive" in str(raised.value)


def test_a_stopped_controller_costs_one_request(two):
    """A client that waits in vain for one controller sends its next request to the other controller.

    The first controller is stopped: it accepts the connection and never responds.
    """
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="no active controller"):
            client(url, two[0].url, total_timeout_s=0.2).get("/v1/status")
        assert client(url, two[0].url, total_timeout_s=30.0).get("/v1/status") == {"ok": True}


@pytest.mark.parametrize("count", [1, 2])
def test_refused_connections_have_an_error_of_their_own(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    urls = [f"http://127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    with pytest.raises(controller_endpoint.NotListeningError):
        client(*urls).get("/v1/status")
    for one in sockets:
        one.close()


def test_the_limit_of_a_request_includes_connecting(monkeypatch):
    timeouts = []

    class Unreachable(http.client.HTTPConnection):
        def __init__(self, host, port, timeout):
            timeouts.append(timeout)
            super().__init__(host, port, timeout=timeout)

        def connect(self):
            raise TimeoutError("timed out")

    monkeypatch.setattr(controller_endpoint.http.client, "HTTPConnection", Unreachable)
    for bound, most_s in ((0.5, 0.5), (None, 5.0)):
        with pytest.raises(UnavailableError, match="timed out"):
            client("http://127.0.0.1:1", total_timeout_s=bound).get("/v1/status")
        assert 0 < timeouts.pop() <= most_s
    assert not timeouts
