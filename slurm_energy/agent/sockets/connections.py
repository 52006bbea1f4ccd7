"""Connections to the agent's sockets.

The number of connections, the message size and the time are limited.

The module does not depend on the content of messages. The connections of a user cost the agent a limited
amount of memory and time, and never use a connection that is reserved for root.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import math
import os
import select
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from slurm_energy.agent.sockets.rate_limit import UserTokenBuckets
from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.log_once import RepeatedFailureLog

LINE_LIMIT = 64 * 1024
"""Maximum size of a message. With the limits on connections, users can occupy 26 MiB of memory."""
_BYTES_PER_TOKEN = 4 * 1024
"""A longer message counts as several messages, because parsing it takes as long as parsing several."""
MAX_PRIVILEGED, MAX_USERS, MAX_PER_USER = 256, 384, 256
"""Maximum concurrent connections: of root, of all users together, of one user (ranks of a job)."""
MESSAGES_PER_S, MESSAGES_BURST = 500.0, 4000.0
"""Rate of messages and connections per user; further messages are delayed, further connections refused."""

_IDLE_S = 60.0
_MESSAGE_S = 5.0
_WRITE_S = 5.0
_SWEEP_S = 1.0
_FIRST_BUFFER_BYTES = 4 * 1024
_ACCEPTED_AT_ONCE = 64
_PAUSE_S = 0.01
_BACKLOG = 128
_PEER = struct.Struct("3i")

log = logging.getLogger(__name__)

Responder = Callable[[bytes, int, Callable[[], bool], int], Awaitable[dict[str, Any]]]


def privileged(uid: int) -> bool:
    """Return whether a user may request every operation.

    Root may, and so may the user who runs the agent.
    """
    return uid in (0, os.geteuid())


def peer_uid(connection: socket.socket) -> int:
    """Return the uid of the process at the other end of a connection. The kernel reports the uid."""
    return _peer(connection)[1]


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return process id and uid of the process at the other end of a connection."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def refusal(error: EnergyError) -> dict[str, Any]:
    """Return the response that reports an error."""
    return {"ok": False, "error": str(error), "code": error.exit_code}


class ConnectionPool:
    """All open connections to the agent's sockets.

    Args:
        respond: returns the response to a message. The arguments are the line, the sender's uid, a function
            that returns whether the sender has disconnected, and the sender's process id.
    """

    def __init__(self, respond: Responder) -> None:
        self._respond = respond
        self._open: set[_Connection] = set()
        self._opened = asyncio.Event()
        self._count_by_uid: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages = UserTokenBuckets(MESSAGES_PER_S, MESSAGES_BURST)

    def admit(self, connection: socket.socket) -> bool:
        """Serve a connection.

        If the user has too many connections, close the connection and return False.
        """
        try:
            pid, uid = _peer(connection)
        except OSError:
            connection.close()
            return False
        if not self._has_capacity(uid):
            connection.close()
            return False
        task = asyncio.ensure_future(self._serve(connection, pid, uid))
        self._count_by_uid[uid] += 1
        self._keep(task)
        return True

    async def sweep(self) -> None:
        """Close connections that exceed their deadline, until the task is cancelled.

        While no connection is open, the task sleeps.
        """
        while True:
            if not self._open:
                self._opened.clear()
                await self._opened.wait()
            await asyncio.sleep(_SWEEP_S)
            now = asyncio.get_running_loop().time()
            for connection in [one for one in self._open if one.deadline < now]:
                connection.abort()

    async def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def remove(self, connection: _Connection) -> None:
        """Remove a connection from the count of its user.

        The connection is closed, and no message of it is in execution.
        """
        self._open.discard(connection)
        self._count_by_uid[connection.uid] -= 1
        if self._count_by_uid[connection.uid] <= 0:
            del self._count_by_uid[connection.uid]

    def wait_s(self, uid: int, length: int) -> float:
        """Return the seconds for which a user's message must be delayed to keep the user's rate limit.

        Args:
            uid: uid of the user.
            length: size of the message in bytes.
        """
        if privileged(uid):
            return 0.0
        tokens = 1 + length // _BYTES_PER_TOKEN
        return self._messages.reserve(uid, asyncio.get_running_loop().time(), tokens)

    def respond_to(self, connection: _Connection, line: bytes) -> None:
        """Execute the operation of a message and send the response.

        The operation completes even if the sender disconnects.
        """
        self._keep(asyncio.ensure_future(self._work(connection, line)))

    async def _work(self, connection: _Connection, line: bytes) -> None:
        try:
            answer = await self._respond(line, connection.uid, connection.has_hung_up, connection.pid)
        finally:
            connection.mark_executed()
        connection.send(answer)

    async def _serve(self, connection: socket.socket, pid: int, uid: int) -> None:
        loop = asyncio.get_running_loop()
        protocol = _Connection(self, pid, uid, loop)
        self._open.add(protocol)
        self._opened.set()
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            connection.close()
            self.remove(protocol)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _has_capacity(self, uid: int) -> bool:
        root = sum(count for other, count in self._count_by_uid.items() if privileged(other))
        if privileged(uid):
            return root < MAX_PRIVILEGED
        users = self._count_by_uid.total() - root
        return (
            users < MAX_USERS
            and self._count_by_uid[uid] < MAX_PER_USER
            and self._messages.try_take(uid, asyncio.get_running_loop().time())
        )


class _Connection(asyncio.BufferedProtocol):
    """The connection of one peer.

    The agent reads a line, sends the response, and only then reads the next line.

    Attributes:
        pid: process id of the peer when it connected, as reported by the kernel; 0 if the peer is in
            another process namespace.
        uid: uid of the peer, as reported by the kernel.
        deadline: time of the event loop in seconds after which the connection is closed.
    """

    def __init__(self, owner: ConnectionPool, pid: int, uid: int, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = pid
        self.uid = uid
        self.deadline = loop.time() + _IDLE_S
        self._owner = owner
        self._loop = loop
        self._buffer = bytearray(_FIRST_BUFFER_BYTES)
        self._used = self._searched = 0
        self._transport: asyncio.Transport | None = None
        self._busy = self._last = self._begun = self._executing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport = None
        if not self._executing or privileged(self.uid):
            self._owner.remove(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._used == len(self._buffer):
            self._buffer.extend(bytes(min(len(self._buffer), LINE_LIMIT - self._used)))
        return memoryview(self._buffer)[self._used :]

    def buffer_updated(self, length: int) -> None:
        self._used += length
        self._process_buffer()

    def eof_received(self) -> bool:
        self._last = True
        self._process_buffer()
        return True  # the response can still be written

    def resume_writing(self) -> None:
        self._next()

    def mark_executed(self) -> None:
        """Take note that the operation of the current line has ended.

        Until then a closed connection of a user still counts, because its line is still in memory. Those of
        root do not count, so that root's messages are accepted while a driver hangs.
        """
        self._executing = False
        if self._transport is None and not privileged(self.uid):
            self._owner.remove(self)

    def send(self, answer: dict[str, Any]) -> None:
        """Send a response.

        The next line is read only after the response has been written completely.
        """
        if self._transport is None or self._transport.is_closing():
            return
        self.deadline = self._loop.time() + _WRITE_S
        self._transport.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
        if not self._transport.get_write_buffer_size():
            self._next()

    def has_hung_up(self) -> bool:
        """Return whether the peer has closed the connection.

        A peer that has closed only its sending direction still receives responses. Any thread may call this
        method.
        """
        transport = self._transport
        if transport is None:
            return True
        poll = select.poll()
        try:
            poll.register(transport.get_extra_info("socket"), 0)
        except ValueError:  # the event loop has just closed the connection
            return True
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Close the connection immediately, without sending buffered data."""
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        """Continue after a response has been sent completely: process the client's next line."""
        self._busy, self._begun = False, False
        self.deadline = self._loop.time() + _IDLE_S
        self._process_buffer()
        if not self._busy and self._transport is not None and not self._last:
            self._transport.resume_reading()

    def _process_buffer(self) -> None:
        """Process the next line in the buffer, if it is complete."""
        if self._busy or self._transport is None:
            return
        end = self._buffer.find(b"\n", self._searched, self._used) + 1
        self._searched = self._used
        if not end and self._last:  # a last line without newline counts
            end = self._used
            if not end:
                self._transport.close()
                return
        if end:
            self._take(end)
        elif self._used >= LINE_LIMIT:
            self._last, self._busy = True, True
            self._transport.pause_reading()
            self._used = self._searched = 0
            self.send(refusal(UsageError(f"message: longer than {LINE_LIMIT // 1024} KiB")))
        elif self._used and not self._begun:
            self._begun = True
            self.deadline = self._loop.time() + _MESSAGE_S

    def _take(self, end: int) -> None:
        assert self._transport is not None
        line = bytes(self._buffer[:end])
        rest = self._buffer[end : self._used]
        if len(self._buffer) > _FIRST_BUFFER_BYTES:  # a line that waits does not occupy its size twice
            self._buffer = bytearray(max(_FIRST_BUFFER_BYTES, len(rest)))
        self._buffer[: len(rest)] = rest
        self._used, self._searched = len(rest), 0
        self._busy, self._executing, self.deadline = True, True, math.inf
        if not self._last:
            self._transport.pause_reading()
        wait_s = self._owner.wait_s(self.uid, len(line))
        if wait_s > 0:
            self._loop.call_later(wait_s, self._owner.respond_to, self, line)
        else:
            self._owner.respond_to(self, line)


class Listener:
    """A listening socket of senergyd.

    The listener accepts connections in small batches and pauses after a refused connection.

    Args:
        path: path of the socket.
        mode: permission bits, which decide who may connect.
        admit: function that serves a connection; returns False if it refuses the connection.
    """

    def __init__(self, path: Path, mode: int, admit: Callable[[socket.socket], bool]) -> None:
        self._path = path
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._failures = RepeatedFailureLog(log)
        self._resting: asyncio.TimerHandle | None = None
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(str(path))
            path.chmod(mode)
            self._socket.listen(_BACKLOG)
        except BaseException:
            self._socket.close()
            raise
        self._watch()

    def close(self) -> None:
        """Stop listening and remove the socket file."""
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _watch(self) -> None:
        self._resting = None
        self._loop.add_reader(self._socket, self._accept)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._resting = self._loop.call_later(seconds, self._watch)

    def _accept(self) -> None:
        refused = False
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED):
                    self._failures.report(str(self._path), f"no connection: {error.strerror}")
                    refused = True
                break
            connection.setblocking(False)
            refused = not self._admit(connection) or refused
        if refused:
            self._rest(_PAUSE_S)
