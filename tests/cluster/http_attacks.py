"""Attacks of a hostile user on senergyctld's network port, for tests.

Each attack lasts until the test ends it. The functions run in a process of the hostile user, which is forked
from the test (`running`). They therefore import only modules that the test has already imported.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_energy.protocol.request_proof import request_payload
from slurm_energy.slurm import munge

NOBODY = 65534
Attack = Callable[[int, Path], None]


@contextlib.contextmanager
def running(attack: Attack, port: int, munge_socket: Path, uid: int = NOBODY) -> Iterator[int]:
    """Context manager that runs an attack as another user and yields its process id.

    The `with` block begins when the attack is at full strength.
    """
    began_read, began_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(began_read)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            attack(port, munge_socket)
            os.write(began_write, b"x")
            threading.Event().wait()
        finally:
            os._exit(1)
    os.close(began_write)
    try:
        with os.fdopen(began_read, "rb") as began:
            assert began.read(1) == b"x", f"{attack.__name__} did not begin"
        yield child
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


_held: list[socket.socket] = []


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    _held.append(connection)
    return connection


def _send(connection: socket.socket, content: bytes) -> bool:
    try:
        connection.sendall(content)
    except OSError:
        return False
    return True


def large_headers(port: int, _: Path) -> None:
    """Attack the server with 70 requests whose headers never end.

    Each request sends up to 128 headers of 190 KiB each.
    """

    def one() -> None:
        connection = _connect(port)
        _send(connection, b"GET /v1/status HTTP/1.1\r\nHost: x\r\n")
        for number in range(128):
            if not _send(connection, b"X-%d: " % number + b"a" * (190 << 10) + b"\r\n"):
                return

    _at_once(one, 70)


def half_open_requests(port: int, _: Path) -> None:
    """Open 1,500 connections, each with the beginning of a request."""
    for _number in range(1500):
        _send(_connect(port), b"GET /v1/status HTTP/1.1\r\nAuthorization: MUNGE ")


def silent_connections(port: int, _: Path) -> None:
    """Open 1,500 connections from many loopback addresses that send nothing."""
    for number in range(1500):
        connection = socket.socket()
        connection.settimeout(20)
        connection.bind((f"127.0.0.{number % 250 + 2}", 0))
        connection.connect(("127.0.0.1", port))
        _held.append(connection)


def large_credentials(port: int, _: Path) -> None:
    """Attack the server with requests that are as large as possible.

    The credential of each request fills the maximum size of the HTTP header. A large body follows.
    """

    def one() -> None:
        for _number in range(10):
            connection = _connect(port)
            credential = b"MUNGE:" + b"A" * 15000 + b":"
            _send(
                connection,
                b"POST /v1/records HTTP/1.1\r\nContent-Length: 16000000\r\nAuthorization: MUNGE "
                + credential
                + b"\r\n\r\n",
            )
            for _part in range(16):
                if not _send(connection, b"a" * 1_000_000):
                    break

    _at_once(one, 30)


def chunked_bodies(port: int, munge_socket: Path) -> None:
    """Send endless chunked bodies with a valid credential."""

    def one() -> None:
        connection = _connect(port)
        _send(connection, _request(munge_socket, "POST", "/v1/predict", b"Transfer-Encoding: chunked"))
        for _number in range(64):
            if not _send(connection, b"40000\r\n" + b"a" * 0x40000 + b"\r\n"):
                return

    _at_once(one, 40)


def slow_bodies(port: int, munge_socket: Path) -> None:
    """Attack the server with 60 connections that send request bodies very slowly.

    Each connection has valid credentials. After a part of the body, it sends one byte per second.
    """

    def one() -> None:
        connection = _connect(port)
        head = _request(munge_socket, "POST", "/v1/predict", b"Content-Length: 1000000")
        _send(connection, head + b"{" * 500_000)

    _at_once(one, 60)
    threading.Thread(target=_drip, daemon=True).start()


def pipelined_requests(port: int, munge_socket: Path) -> None:
    """Attack senergyctld: send a valid request followed by thousands, without reading any response."""

    def one() -> None:
        connection = _connect(port)
        good = _request(munge_socket, "GET", "/v1/status")
        _send(connection, good)
        for _number in range(2000):
            if not _send(connection, good):
                return

    _at_once(one, 60)


def compressed_bodies(port: int, munge_socket: Path) -> None:
    """Send small bodies that are declared as compressed and would unpack to large ones."""
    import zlib

    body = zlib.compress(bytes(64 << 20), 9)

    def one() -> None:
        length = b"Content-Encoding: deflate\r\nContent-Length: %d" % len(body)
        _send(_connect(port), _request(munge_socket, "POST", "/v1/predict", length) + body)

    _at_once(one, 40)


def floods_of_connections(port: int, _: Path) -> None:
    """Connect, send a request with a false credential and disconnect, continuously."""
    request = b"GET /v1/status HTTP/1.1\r\nAuthorization: MUNGE MUNGE:AwQFAAD:\r\n\r\n"

    def flood() -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 20) as one:
                one.sendall(request)

    for _number in range(8):
        threading.Thread(target=flood, daemon=True).start()


def floods_of_requests(port: int, munge_socket: Path) -> None:
    """Send requests with valid credentials continuously, and disconnect before the response."""

    def flood() -> None:
        while True:
            request = _request(munge_socket, "GET", "/v1/records")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 20) as one:
                one.sendall(request)

    for _number in range(8):
        threading.Thread(target=flood, daemon=True).start()


def unread_answers(port: int, munge_socket: Path) -> None:
    """Send 1,500 requests with valid credentials and never read the responses."""

    def one() -> None:
        for _number in range(125):
            connection = socket.socket()
            _held.append(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.settimeout(20)
            with contextlib.suppress(OSError):
                connection.connect(("127.0.0.1", port))
                connection.sendall(_request(munge_socket, "GET", "/v1/status"))

    _at_once(one, 12)


ATTACKS: tuple[Attack, ...] = (
    large_headers,
    half_open_requests,
    silent_connections,
    large_credentials,
    chunked_bodies,
    slow_bodies,
    pipelined_requests,
    compressed_bodies,
    floods_of_connections,
    floods_of_requests,
)


def _request(munge_socket: Path, method: str, target: str, header: bytes = b"") -> bytes:
    credential = munge.encode(request_payload(method, target, b""), munge_socket)
    first = f"{method} {target} HTTP/1.1\r\nHost: x\r\nAuthorization: MUNGE {credential}\r\n"
    return first.encode() + header + (b"\r\n\r\n" if header else b"\r\n")


def _at_once(one: Callable[[], None], count: int) -> None:
    def quietly() -> None:
        with contextlib.suppress(OSError):
            one()

    threads = [threading.Thread(target=quietly) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drip() -> None:
    while True:
        for connection in _held:
            _send(connection, b"{")
        time.sleep(1)
