"""Admission of connections before their credential is verified: limits on their number, duration and bytes.

A connection carries one request. Until the credential of its request is decoded, the connection counts
against the client's address. If an address has too many connections, the oldest one that has sent no request
for a while is closed. A client that sends its request at once is therefore served while other clients keep
idle connections open.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, Protocol

from slurm_energy.controller.http.request_head import END, MAX_HEAD_BYTES, HeadError, RequestHead

MAX_UNIDENTIFIED: Final = 1024
MAX_UNIDENTIFIED_PER_ADDRESS: Final = 128
BURST_FACTOR: Final = 1.5  # for new connections, and for connections whose request waits for its turn
BURST_FACTOR_PER_ADDRESS: Final = 6.0
GRACE_S: Final = 0.5
CLOSING_TIMEOUT_S: Final = 10.0
WARNING_INTERVAL_S: Final = 60.0
_SWEEP_INTERVAL_S: Final = 0.5
_READ_BYTES: Final = 64 << 10

log = logging.getLogger(__name__)


class ConnectionPhase(enum.Enum):
    """Phase of an HTTP connection to senergyctld.

    The value is the maximum duration of the phase in seconds.
    """

    HEAD = 5.0
    IDENTIFICATION = 20.0
    REFUSAL = 5.5
    SERVICE = 1800.0


class RequestHandler(Protocol):
    """Interface of the protocol object that serves a request; aiohttp implements it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...  # noqa: D102
    def data_received(self, data: bytes) -> None: ...  # noqa: D102
    def eof_received(self) -> None: ...  # noqa: D102
    def connection_lost(self, exc: BaseException | None) -> None: ...  # noqa: D102
    def pause_writing(self) -> None: ...  # noqa: D102
    def resume_writing(self) -> None: ...  # noqa: D102


class ConnectionAdmission:
    """All connections of the server. Connections without an identified user are counted by client address.

    Args:
        clock: returns monotonic seconds.
        limit: maximum number of connections without an identified user. Above this number, connections that
            have not sent a request are closed.
        limit_per_address: maximum number of connections without an identified user from one client address.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        limit: int = MAX_UNIDENTIFIED,
        limit_per_address: int = MAX_UNIDENTIFIED_PER_ADDRESS,
    ) -> None:
        self.clock = clock
        self._limit = limit
        self._limit_per_address = limit_per_address
        # By address, oldest first; a dict keeps this order and removes in constant time.
        self._unidentified: dict[str, dict[GuardedConnection, None]] = {}
        self._identified: set[GuardedConnection] = set()
        self._by_handler: dict[Any, GuardedConnection] = {}
        self._count = 0
        self._warned_s = -math.inf

    def connection(self, make_handler: Callable[[], RequestHandler]) -> GuardedConnection:
        """Return the protocol object of a new connection.

        `make_handler` creates the handler of the connection when the request head is complete.
        """
        return GuardedConnection(self, make_handler)

    def __len__(self) -> int:
        return self._count + len(self._identified)

    @property
    def unidentified(self) -> int:
        """Number of open connections whose user has not been identified yet."""
        return self._count

    def admit(self, connection: GuardedConnection) -> None:
        """Count a new connection to senergyctld.

        If there are too many connections, close the oldest one that has not sent a request.
        """
        of_address = self._unidentified.setdefault(connection.address, {})
        of_address[connection] = None
        self._count += 1
        if len(of_address) > self._limit_per_address:
            full = len(of_address) > BURST_FACTOR_PER_ADDRESS * self._limit_per_address
            self._make_room(connection.address, connection if full else None)
        elif self._count > self._limit:
            most = max(self._unidentified, key=lambda address: len(self._unidentified[address]))
            self._make_room(most, connection if self._count > BURST_FACTOR * self._limit else None)
        else:
            return
        if self.clock() >= self._warned_s + WARNING_INTERVAL_S:
            self._warned_s = self.clock()
            log.warning("too many connections without a request, the latest from %s", connection.address)

    def mark_identified(self, handler: Any) -> None:
        """Record that the user of the connection that `handler` serves has been identified.

        The connection then no longer counts as a connection of an unknown user. Nothing happens if `handler`
        serves none of the counted connections.
        """
        connection = self._by_handler.get(handler)
        if connection is not None and self._remove(connection):
            self._identified.add(connection)
            connection.resume_reading(ConnectionPhase.SERVICE)

    def mark_refused(self, handler: Any) -> None:
        """Let the server read and discard the rest of a request that is refused.

        Otherwise the sender of the request would not receive the refusal.

        Args:
            handler: protocol object that serves the request.
        """
        if (connection := self._by_handler.get(handler)) is not None:
            connection.resume_reading(ConnectionPhase.REFUSAL)

    def set_handler(self, connection: GuardedConnection, handler: Any) -> None:
        """Record which handler serves a connection."""
        self._by_handler[handler] = connection

    def remove(self, connection: GuardedConnection, handler: Any) -> None:
        """Remove a closed connection.

        `handler` served this connection; None means that no handler served it.
        """
        self._remove(connection)
        self._identified.discard(connection)
        self._by_handler.pop(handler, None)

    async def loop(self) -> None:
        """Close connections that stay in one phase for too long, again and again.

        A phase is a part of a request, such as the reception of its head. Each phase has its own time limit.
        The loop runs until its task is cancelled.
        """
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        """Close all connections that take too long, for example to send their request.

        Each phase of a connection has its own time limit.
        """
        for connection in list(self._all()):
            connection.abort_if_late()

    def _all(self) -> Iterator[GuardedConnection]:
        for of_address in self._unidentified.values():
            yield from of_address
        yield from self._identified

    def _make_room(self, address: str, newest: GuardedConnection | None) -> None:
        """Close one connection of an address that has too many connections.

        The function closes the oldest connection that was opened more than `GRACE_S` seconds ago and has not
        sent its request head yet. If there is no such connection, the function closes `newest`. If `newest`
        is None too, nothing is closed.
        """
        since_s = self.clock() - GRACE_S
        silent = (one for one in self._unidentified[address] if one.awaits_head and one.since_s < since_s)
        victim = next(silent, newest)
        if victim is not None:
            self._remove(victim)
            victim.abort()

    def _remove(self, connection: GuardedConnection) -> bool:
        of_address = self._unidentified.get(connection.address, {})
        if connection not in of_address:
            return False
        del of_address[connection]
        self._count -= 1
        if not of_address:
            del self._unidentified[connection.address]
        return True


class GuardedConnection(asyncio.BufferedProtocol):
    """A connection that passes its request on to the HTTP server after a check of the request head.

    The size of the request head and the time to receive it are limited. A connection carries one request.
    """

    _shared_buffer: Final = memoryview(bytearray(_READ_BYTES))

    def __init__(self, control: ConnectionAdmission, make_handler: Callable[[], RequestHandler]) -> None:
        self._control = control
        self._make_handler = make_handler
        self._handler: RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._body_bytes_left = 0
        self.since_s = control.clock()
        self._phase = ConnectionPhase.HEAD
        self._closing_since_s: float | None = None
        self._paused = False
        self.address = ""

    @property
    def awaits_head(self) -> bool:
        """Whether the head of the HTTP request has not been received completely yet."""
        return self._handler is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection with the object that limits the number of connections."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = address_key(transport.get_extra_info("peername"))
        self._control.admit(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the read buffer.

        While the user is not identified, the buffer has at most the size of a request head.
        """
        # All connections share one buffer: it is emptied before the event loop reads from another one.
        return self._shared_buffer[
            : _READ_BYTES if self._phase is ConnectionPhase.SERVICE else MAX_HEAD_BYTES
        ]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the next `nbytes` bytes of a request, which are in the read buffer."""
        data = bytes(self._shared_buffer[:nbytes])
        if self._transport is None or self._transport.is_closing():
            return
        if self._handler is None:
            self._receive_head(data)
        else:
            self._receive_body(data)

    def eof_received(self) -> None:
        """Close the connection when the client has closed its sending side.

        Half-closed connections are not served.
        """
        if self._handler is not None:
            self._handler.eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Unregister the connection and notify its handler."""
        self._control.remove(self, self._handler)
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Notify the handler that the client does not read, so that the handler stops writing."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Notify the handler that the client reads again, so that the handler continues to write."""
        if self._handler is not None:
            self._handler.resume_writing()

    def resume_reading(self, phase: ConnectionPhase) -> None:
        """Continue to read the request body, and put the connection into the phase `phase`.

        The HTTP handler limits the size of the body.
        """
        self._phase, self.since_s = phase, self._control.clock()
        if self._paused and self._transport is not None:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once and discard unsent data."""
        if self._transport is not None:
            self._transport.abort()

    def abort_if_late(self) -> None:
        """Close the connection if its current phase has lasted too long."""
        now_s = self._control.clock()
        if self._transport is None:
            return
        if self._transport.is_closing():  # still flushing to a client that may never read
            self._closing_since_s = now_s if self._closing_since_s is None else self._closing_since_s
            if now_s - self._closing_since_s > CLOSING_TIMEOUT_S:
                self.abort()
        elif now_s - self.since_s > self._phase.value:
            if self.awaits_head:
                self._send_refusal(
                    HeadError(408, f"no complete request within {ConnectionPhase.HEAD.value:g} s")
                )
            else:
                self.abort()

    def _receive_head(self, data: bytes) -> None:
        searched = max(0, len(self._head) - len(END) + 1)
        self._head += data
        end = self._head.find(END, searched)
        try:
            if end < 0:
                if len(self._head) >= MAX_HEAD_BYTES:
                    raise HeadError(431, f"request line and headers are longer than {MAX_HEAD_BYTES} bytes")
                return
            head = bytes(self._head[: end + len(END)])
            rest = bytes(self._head[end + len(END) :])
            self._body_bytes_left = RequestHead.parse(head).content_length
        except HeadError as error:
            self._send_refusal(error)
            return
        self._head = bytearray()
        self._serve(head)
        if rest:
            self._receive_body(rest)

    def _serve(self, head: bytes) -> None:
        assert self._transport is not None
        self.since_s = self._control.clock()
        self._phase = ConnectionPhase.IDENTIFICATION
        # Read nothing more before the credential is decoded.
        self._transport.pause_reading()
        self._paused = True
        self._handler = self._make_handler()
        self._control.set_handler(self, self._handler)
        self._handler.connection_made(self._transport)
        self._handler.data_received(head)

    def _receive_body(self, data: bytes) -> None:
        if len(data) > self._body_bytes_left:  # a second request, or more than the announced body
            self.abort()
            return
        self._body_bytes_left -= len(data)
        assert self._handler is not None
        self._handler.data_received(data)

    def _send_refusal(self, error: HeadError) -> None:
        assert self._transport is not None
        body = json.dumps({"error": error.reason, "code": 2}).encode()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._transport.close()


def address_key(peer: Any) -> str:
    """Return the key under which connections of an address are counted: the address, or one key for loopback.

    All loopback addresses have one key, because a user of this host can connect from any of them. Other
    addresses each have their own key. They are not combined by network, because all nodes of a cluster may be
    in one IPv6 network, and a user of one node cannot use the addresses of other nodes.
    """
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return str(peer)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return "loopback" if address.is_loopback else str(address)
