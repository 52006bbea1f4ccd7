"""Tests of the parser of the head of an HTTP request.

The forms that the clients send are accepted, and everything else is refused.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.controller.http.request_head import END, MAX_HEAD_BYTES, MAX_HEADERS, HeadError, RequestHead


def head(*lines: bytes, first: bytes = b"GET /v1/status?x=1 HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *lines]) + END


def test_the_clients_requests_are_accepted():
    assert RequestHead.parse(head(b"Host: c", b"Authorization: MUNGE MUNGE:AwQ+/=:")).content_length == 0
    lines = [b"Host: c", b"content-length:  42 ", b"Connection: close"]
    assert RequestHead.parse(head(*lines, first=b"POST /v1/records HTTP/1.1")).content_length == 42


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([b"Content-Length: 1", b"Content-Length: 1"], 400),
        ([b"Content-Length: -1"], 400),
        ([b"Content-Length: 1,1"], 400),
        ([b"Content-Length: +1"], 400),
        ([b"Content-Length: 1_0"], 400),
        ([b"Content-Length: "], 400),
        ([b"Content-Length : 1"], 400),
        ([b"Content-Length: " + b"9" * 16], 400),
        ([b"Transfer-Encoding: chunked"], 411),
        ([b"transfer-encoding:\tidentity"], 411),
        ([b"Content-Encoding: gzip"], 415),
        ([b"Upgrade: websocket", b"Connection: upgrade"], 400),
        ([b"Host: c", b" folded"], 400),
        ([b"Host: a\nb"], 400),
        ([b"Host: a\rb"], 400),
        ([b"Host: a\0b"], 400),
        ([b": x"], 400),
        ([b"no colon"], 400),
        ([b"X: y"] * (MAX_HEADERS + 1), 431),
        ([b"X: " + b"y" * MAX_HEAD_BYTES], 431),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bodies_without_a_definite_length_are_refused(lines, status):
    with pytest.raises(HeadError) as raised:
        RequestHead.parse(head(*lines))
    assert raised.value.status == status


@pytest.mark.parametrize(
    "first",
    [b"", b"GET /", b"GET  / HTTP/1.1", b"GET / HTTP/2.0", b"get / HTTP/1.1", b"GET http://x/ HTTP/1.1",
     b"CONNECT x:1 HTTP/1.1", b"GET /a b HTTP/1.1", b"GET /\xff HTTP/1.1", b"\x16\x03\x01"],
)  # fmt: skip
def test_malformed_requests_are_refused(first):
    with pytest.raises(HeadError) as raised:
        RequestHead.parse(head(first=first))
    assert raised.value.status == 400


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_refused(content):
    try:
        parsed = RequestHead.parse(content + END)
    except HeadError as error:
        assert error.status in (400, 411, 415, 431)
    else:
        assert parsed.content_length >= 0 and b"\0" not in content
