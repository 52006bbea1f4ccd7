"""Test the limits on network connections whose user is not yet identified.

The tests check how many such connections are accepted, how long a connection may last, and which connections
are closed first. Some tests use real sockets, others a fake transport.
"""

from __future__ import annotations

import asyncio

import pytest

from slurm_energy.controller.http import connection_admission
from slurm_energy.controller.http.connection_admission import (
    ConnectionAdmission,
    ConnectionPhase,
    address_key,
)
from slurm_energy.controller.http.request_head import MAX_HEAD_BYTES

HEAD = b"GET /v1/status HTTP/1.1\r\nHost: c\r\n\r\n"


class Transport(asyncio.Transport):
    """Fake transport that records calls."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.sent, self.closing, self.aborted, self.reading = address, b"", False, False, True

    def get_extra_info(self, name, default=None):
        return (self.address, 1) if name == "peername" else default

    def write(self, data):
        self.sent += data

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = self.aborted = True

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class Handler:
    """Stands in for aiohttp's handler."""

    def __init__(self) -> None:
        self.received, self.lost = b"", False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data

    def connection_lost(self, exc):
        self.lost = True


class Port:
    def __init__(self, **limits) -> None:
        self.now_s = 0.0
        self.control = ConnectionAdmission(lambda: self.now_s, **limits)
        self.handlers = []

    def make(self):
        self.handlers.append(Handler())
        return self.handlers[-1]

    def connect(self, address="10.0.0.1", content=b""):
        connection, transport = self.control.connection(self.make), Transport(address)
        connection.connection_made(transport)
        give(connection, content)
        return connection, transport


def give(connection, content):
    while content:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(content))
        buffer[:count] = content[:count]
        connection.buffer_updated(count)
        content = content[count:]


def test_a_handler_is_created_for_a_complete_head_and_gets_one_request():
    port = Port()
    connection, transport = port.connect(content=HEAD[:-1])
    assert port.handlers == []
    give(connection, HEAD[-1:])
    assert port.handlers[0].received == HEAD and not transport.reading
    port.control.mark_identified(port.handlers[0])
    assert transport.reading and port.control.unidentified == 0 and len(port.control) == 1
    give(connection, HEAD)
    assert transport.aborted and port.handlers[0].received == HEAD


@pytest.mark.parametrize("split", range(1, len(HEAD)))
def test_a_head_may_come_in_parts(split):
    port = Port()
    connection, _ = port.connect(content=HEAD[:split])
    give(connection, HEAD[split:])
    assert port.handlers[0].received == HEAD


def test_no_more_of_a_body_is_passed_on_than_was_announced():
    port = Port()
    connection, transport = port.connect(content=b"POST /v1/x HTTP/1.1\r\nContent-Length: 5\r\n\r\nab")
    port.control.mark_identified(port.handlers[0])
    give(connection, b"cde")
    assert port.handlers[0].received.endswith(b"\r\n\r\nabcde") and not transport.aborted
    give(connection, b"f")
    assert transport.aborted and port.handlers[0].received.endswith(b"abcde")


def test_an_endless_head_is_refused_at_its_bound():
    port = Port()
    connection, transport = port.connect(content=b"GET /" + b"a" * (MAX_HEAD_BYTES - 6))
    assert not transport.closing
    give(connection, b"aa")
    assert transport.closing and b" 431 " in transport.sent.split(b"\r\n")[0]
    give(connection, b"a" * 10)  # is discarded
    assert port.handlers == []


def test_each_phase_ends():
    port = Port()
    slow, slow_transport = port.connect(content=HEAD[:5])
    _, waits = port.connect(content=HEAD)
    _, served = port.connect(content=HEAD)
    port.control.mark_identified(port.handlers[1])
    port.now_s = ConnectionPhase.HEAD.value + 1
    port.control.sweep()
    assert b" 408 " in slow_transport.sent and slow_transport.closing
    assert not waits.closing and not served.closing
    give(slow, b"late")
    port.now_s += ConnectionPhase.IDENTIFICATION.value
    port.control.sweep()
    assert waits.aborted and not served.closing
    port.now_s += ConnectionPhase.SERVICE.value
    port.control.sweep()
    assert served.aborted


def test_a_client_that_never_reads_its_response_is_disconnected():
    port = Port()
    _, transport = port.connect(content=HEAD)
    port.control.mark_identified(port.handlers[0])
    transport.close()
    port.control.sweep()
    port.now_s += connection_admission.CLOSING_TIMEOUT_S + 1
    port.control.sweep()
    assert transport.aborted


def test_a_full_address_loses_its_oldest_silent_connection():
    port = Port(limit_per_address=3)
    _, asking = port.connect(content=HEAD)
    silent = [port.connect()[1] for _ in range(2)]
    port.now_s += connection_admission.GRACE_S * 2
    _, honest = port.connect(content=HEAD)
    assert [t.aborted for t in silent] == [True, False]
    assert not asking.aborted and not honest.aborted
    port.connect()
    assert [t.aborted for t in silent] == [True, True] and port.control.unidentified == 3
    assert not asking.aborted and not honest.aborted


def test_a_burst_of_clients_is_not_cut():
    """The server keeps a burst of connections open whose requests arrive a little later.

    In the test, 40 clients connect at once. The limit per address is 10.
    """
    port = Port(limit_per_address=10)
    burst = [port.connect() for _ in range(40)]
    assert not any(transport.aborted for _, transport in burst)
    for connection, _ in burst:
        give(connection, HEAD)
    port.now_s += connection_admission.GRACE_S * 2
    more = [port.connect()[1] for _ in range(30)]
    assert not any(transport.aborted for _, transport in burst)
    hard = int(10 * connection_admission.BURST_FACTOR_PER_ADDRESS)
    assert [t.aborted for t in more] == [False] * (hard - 40) + [True] * (30 + 40 - hard)
    assert port.control.unidentified == hard


def test_identified_connections_do_not_count():
    port = Port(limit_per_address=2)
    served = [port.connect(content=HEAD)[1] for _ in range(2)]
    for handler in port.handlers:
        port.control.mark_identified(handler)
    port.now_s += 1
    more = [port.connect()[1] for _ in range(2)]
    port.now_s += 1
    port.connect()
    assert [t.aborted for t in served + more] == [False, False, True, False]


def test_at_the_total_limit_the_address_with_most_connections_loses_one():
    port = Port(limit=6, limit_per_address=5)
    crowd = [port.connect("10.0.0.1")[1] for _ in range(5)]
    _, lonely = port.connect("10.0.0.2")
    port.now_s += connection_admission.GRACE_S * 2
    _, late = port.connect("10.0.0.3")
    assert [t.aborted for t in crowd] == [True, False, False, False, False]
    assert not lonely.aborted and not late.aborted


def test_the_total_number_of_connections_is_bounded():
    port = Port(limit=6, limit_per_address=100)
    waiting = [port.connect(f"10.0.0.{number}", HEAD)[1] for number in range(20)]
    assert sum(not transport.aborted for transport in waiting) == 9 == port.control.unidentified


def test_lost_connections_are_removed():
    port = Port()
    connections = [port.connect(content=content)[0] for content in (b"", HEAD, HEAD)]
    port.control.mark_identified(port.handlers[1])
    for connection in connections:
        connection.connection_lost(None)
    assert len(port.control) == 0 and port.control.unidentified == 0
    assert all(handler.lost for handler in port.handlers)
    assert not port.control._unidentified and not port.control._by_handler


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        (("127.0.0.1", 1), "loopback"),
        (("127.9.9.9", 1), "loopback"),
        (("::1", 1, 0, 0), "loopback"),
        (("::ffff:127.0.0.2", 1, 0, 0), "loopback"),
        (("10.1.2.3", 1), "10.1.2.3"),
        (("::ffff:10.1.2.3", 1, 0, 0), "10.1.2.3"),
        (("2001:db8::1:2:3:4", 1, 0, 0), "2001:db8::1:2:3:4"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::1"),
        (None, "None"),
        ("", ""),
    ],
)
def test_loopback_addresses_count_as_one(peer, key):
    assert address_key(peer) == key


def test_an_attacker_causes_one_log_line_a_minute(caplog):
    port = Port(limit_per_address=4)
    for number in range(60):
        port.now_s = 2.0 * number
        transports = [port.connect()[0] for _ in range(6)]
        for connection in transports:
            connection.connection_lost(None)
        port.control.sweep()
    assert len([one for one in caplog.records if "too many connections" in one.message]) == 2
