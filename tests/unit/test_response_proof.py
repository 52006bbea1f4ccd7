"""Test the munge proofs of HTTP requests and responses; a proof covers every part of the message.

Munge is replaced by a stand-in.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time

import open_munge
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy import __version__
from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.protocol import controller_endpoint
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.request_proof import request_payload, signed_body_sha256
from slurm_energy.protocol.response_proof import ProofError, ResponseSeal, ResponseVerifier

REQUEST = "MUNGE:request:"


@pytest.fixture(autouse=True)
def _munge(monkeypatch):
    open_munge.install(monkeypatch)


def sealed(value, credential=REQUEST, status=200, parts=1):
    seal, text = ResponseSeal(credential, status), json.dumps(value)[:-1].encode()
    step = max(1, len(text) // parts)
    for at in range(0, len(text), step):
        seal.update(text[at : at + step])
    return text + seal.tail(None)


def check(content, credential=REQUEST, status=200, uids=(open_munge.CONTROLLER,)):
    ResponseVerifier(frozenset(uids), None).check(content, credential, status)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_true_response_is_json_and_verified(parts):
    content = sealed({"records": [{"tag": 'a","proof":"b'}]}, parts=parts)
    check(content)
    assert list(json.loads(content)) == ["records", "proof"]


def test_a_signed_response_that_is_no_object_is_one_error(monkeypatch):
    client, _ = ask(monkeypatch, 200, lambda _: b'[{"records":[]}]')
    monkeypatch.setattr(ResponseVerifier, "check", lambda *_: None)
    with pytest.raises(UnavailableError, match="not a JSON object"):
        client.get("/v1/status")


def test_every_part_is_bound():
    content = sealed({"accepted": ["a"]})
    for changed in (
        content.replace(b'"a"', b'"b"'),
        content.replace(b"{", b"{ "),
        b'{"accepted":["b"],"x":0' + content[content.index(b',"proof"') :],
        content[: content.index(b',"proof"')] + b"}",
        content.replace(b"}", b"} "),
        content + b"x",
        b"",
        b"{}",
        b',"proof":""}',
    ):
        with pytest.raises(ProofError):
            check(changed)
    with pytest.raises(ProofError, match="another request"):
        check(content, credential="MUNGE:other:")
    with pytest.raises(ProofError, match="another request"):
        check(content, status=400)
    with pytest.raises(ProofError, match=f"uid {open_munge.CONTROLLER} made it"):
        check(content, uids=(0,))


@given(st.binary(max_size=300))
def test_no_bytes_without_a_credential_pass(content):
    with pytest.raises(ProofError):
        check(content)


def test_a_request_s_payload_is_for_that_request():
    payload = request_payload("GET", "/v1/status?x=1", b"body")
    assert len(payload) == len(request_payload("POST", "/v1/records?job=" + "1," * 5000, b""))
    assert signed_body_sha256(payload, "GET", "/v1/status?x=1")
    for method, target in (("POST", "/v1/status?x=1"), ("GET", "/v1/status"), ("GET", "/v1/status?x=1 ")):
        assert signed_body_sha256(payload, method, target) is None
    assert signed_body_sha256(b"senergy-response 1 " + payload[18:], "GET", "/v1/status?x=1") is None


class Response:
    def __init__(self, status, content):
        self.status, self.content = status, content

    def read(self, count):
        part, self.content = self.content[:count], self.content[count:]
        return part

    def getheader(self, name):
        return __version__ if name == "Senergy-Release" else None


class Connection:
    """A stand-in for http.client.HTTPConnection."""

    def __init__(self, status, answer):
        self.status, self.answer, self.sock, self.asked = status, answer, None, []

    def connect(self):
        pass

    def request(self, method, target, body, headers):
        self.asked.append((method, target, body))
        self.credential = headers["Authorization"].removeprefix("MUNGE ")

    def getresponse(self):
        return Response(self.status, self.answer(self.credential))

    def close(self):
        pass


def ask(monkeypatch, status, answer, **bounds):
    connection = Connection(status, answer)
    monkeypatch.setattr(controller_endpoint.http.client, "HTTPConnection", lambda *_, **__: connection)
    users = [str(open_munge.CONTROLLER)]
    return ControllerClient("http://c:1", None, 1.0, users, **bounds), connection


ERROR = {"error": "job 5: no energy record", "code": 6}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, UsageError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (413, UsageError),
        (503, UnavailableError),
    ],
)
def test_errors_with_proof_keep_their_class(monkeypatch, status, error):
    asked, _ = ask(monkeypatch, status, lambda credential: sealed(ERROR, credential, status))
    with pytest.raises(error, match=r"^job 5: no energy record$"):
        asked.get("/v1/jobs/5")


@pytest.mark.parametrize("status", [400, 403, 404, 408, 411, 413, 415, 431, 500, 502, 503])
@pytest.mark.parametrize("content", [json.dumps(ERROR).encode(), b"", b"<html>", b"[1]", b"[" * 100_000])
def test_errors_without_proof_are_temporary(monkeypatch, status, content):
    asked, _ = ask(monkeypatch, status, lambda credential: content)
    with pytest.raises(UnavailableError, match="controller http://c:1: "):
        asked.post("/v1/records", {"items": []})


def test_a_refused_credential_is_told_and_costs_nothing(monkeypatch):
    words = {"error": "munge: credential refused: Expired credential\x1b[2J", "code": 5}
    asked, _ = ask(monkeypatch, 401, lambda credential: json.dumps(words).encode())
    with pytest.raises(ForbiddenError, match="Expired credential") as raised:
        asked.post("/v1/records", {"items": []})
    assert "\x1b" not in str(raised.value)


def test_success_without_proof_is_none(monkeypatch):
    asked, _ = ask(monkeypatch, 200, lambda credential: b'{"accepted": ["a"]}')
    with pytest.raises(ProofError, match="has no proof"):
        asked.post("/v1/records", {"items": []})
    asked, _ = ask(monkeypatch, 200, lambda credential: sealed({"accepted": []}, "another"))
    with pytest.raises(ProofError):
        asked.post("/v1/records", {"items": []})


def test_a_response_without_end_is_broken_off(monkeypatch):
    class Endless(Response):
        def read(self, count):
            return b"a" * count

    asked, connection = ask(monkeypatch, 200, lambda credential: b"", max_response_bytes=1 << 20)
    connection.getresponse = lambda: Endless(200, b"")
    with pytest.raises(UnavailableError, match="larger than 1048576 bytes"):
        asked.get("/v1/status")


def test_long_parameters_go_in_the_body(monkeypatch):
    asked, connection = ask(monkeypatch, 200, lambda credential: sealed({"records": []}, credential))
    jobs = ",".join(str(10**9 + number) for number in range(5000))
    assert asked.get("/v1/records", {"job": jobs}) == {"records": []}
    assert asked.get("/v1/records", {"job": "1,2"}) == {"records": []}
    (method, target, body), second = connection.asked
    assert (method, target, json.loads(body)) == ("POST", "/v1/records/search", {"job": jobs})
    assert second == ("GET", "/v1/records?job=1%2C2", None)


@pytest.mark.parametrize("value", ["\udcff", "\ud800" * 5000, "a\0b"])
def test_parameters_that_are_not_text_are_refused_before_the_request(monkeypatch, value):
    asked, connection = ask(monkeypatch, 200, lambda credential: sealed({}, credential))
    with pytest.raises(UsageError, match=r"account: '.*' is not text in UTF-8"):
        asked.get("/v1/records", {"account": value})
    assert connection.asked == []


def test_a_connection_that_is_broken_off_is_tried_again(monkeypatch):
    monkeypatch.setattr(controller_endpoint, "_RETRY_PAUSES_S", (0.0, 0.0, 0.0))
    failures = [ConnectionResetError(104, "reset"), http.client.RemoteDisconnected("gone"), BrokenPipeError()]
    asked, connection = ask(monkeypatch, 200, lambda credential: sealed({"records": []}, credential))
    answer = connection.getresponse

    def getresponse():
        if failures:
            raise failures.pop()
        return answer()

    connection.getresponse = getresponse
    assert asked.get("/v1/records") == {"records": []} and len(connection.asked) == 4
    failures += [ConnectionResetError(104, "reset")] * 4
    with pytest.raises(UnavailableError, match="is senergyctld running"):
        asked.get("/v1/records")
    failures[:] = [ConnectionRefusedError(111, "refused"), OSError(5, "x")]
    with pytest.raises(UnavailableError):
        asked.get("/v1/records")
    assert len(failures) == 1


def test_the_time_for_a_request_holds_for_all_tries_together():
    """The time limit of a request holds for all attempts together.

    An impostor sends without end and never completes a response. Each attempt alone could therefore use up
    the whole time.
    """
    peers = []

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            while True:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, peer = listening.accept()
                    peers.append(peer)
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=r"no whole response within 0\.5 s"):
            ControllerClient(url, None, 30.0, [], total_timeout_s=0.5).get("/v1/status")
        with socket.create_connection(listening.getsockname()) as last:  # accepted after all attempts
            while last.getsockname() not in peers:
                time.sleep(0.01)
        listening.shutdown(socket.SHUT_RDWR)
    assert len(peers) == 2  # one attempt, and the connection of the test
