"""Attacks of a hostile user on senergyd's socket: attacks.py SOCKET KIND SECONDS UID [JOB_ID].

The program becomes the user UID, attacks, and prints a JSON object about the attack. It needs only Python,
because the user may not be able to read the package. Kinds:

messages  sends each line of standard input (base64) and collects the responses
hold      keeps 1000 connections open, each with half a message, and reopens closed ones
deaf      sends requests and never reads a response
slow      writes a byte per second on as many connections as possible
flood     connects and disconnects as often as possible
brackets  sends messages of 64 KiB of empty lists on as many connections as possible
ask       sends valid requests without a pause on 32 connections
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import select
import socket
import sys
import time
from typing import Any

HELD = 1000
CONNECTIONS = 300
ASKING = 32
ANSWER_TIMEOUT_S = 30.0


class Attacker:
    def __init__(self, path: str, seconds: float, job_id: int) -> None:
        self.path = path
        self.until = time.monotonic() + seconds
        self.kept: socket.socket | None = None
        self.energy = b'{"op":"energy","job_id":%d,"fresh":true}\n' % job_id

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1.0)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def messages(self) -> dict[str, Any]:
        answers = []
        for text in sys.stdin:
            line = base64.b64decode(text) + b"\n"
            while not (answer := self.one_answer(line)):  # a connection beyond the rate limit
                time.sleep(0.01)
            answers.append(answer.decode())
        return {"answers": answers}

    def one_answer(self, line: bytes) -> bytes:
        """Send a line to senergyd and return its response.

        All lines use the same connection as long as the agent keeps it open.
        """
        if self.kept is None:
            self.kept = self.connect()
            if self.kept is None:
                return b""
            self.kept.settimeout(ANSWER_TIMEOUT_S)
            self.lines = self.kept.makefile("rb")
        answer = b""
        with contextlib.suppress(ConnectionError):
            self.kept.sendall(line)
        with contextlib.suppress(ConnectionError):
            answer = self.lines.readline()
        if not answer or b"longer than" in answer:  # this ends the connection
            self.kept.close()
            self.kept = None
        return answer

    def hold(self) -> dict[str, Any]:
        return self.keep(HELD, b'{"op":', 0.0)

    def slow(self) -> dict[str, Any]:
        return self.keep(CONNECTIONS, b'{"op":"status","x":"', 1.0)

    def deaf(self) -> dict[str, Any]:
        return self.keep(CONNECTIONS, b'{"op":"status"}\n' * 200, 0.1)

    def brackets(self) -> dict[str, Any]:
        return self.keep(CONNECTIONS, b'{"op":"status","x":[%s[]]}\n' % (b"[]," * 21_000), 0.5)

    def keep(self, most: int, data: bytes, again_s: float) -> dict[str, Any]:
        """Attack a server with many open connections until the attack is stopped.

        Up to `most` connections are kept open. The attacker sends `data` on each new connection. Every
        `again_s` seconds, it sends again on all connections: one byte, or `data` if `again_s` is below
        1. If `again_s` is 0, it sends only once.
        """
        held: list[socket.socket] = []
        opened, last = 0, time.monotonic()
        while self.goes_on:
            while len(held) < most and self.goes_on and (connection := self.connect()):
                opened += 1
                send(connection, data)
                held.append(connection)
                if opened % 100 == 0:
                    break
            if again_s and time.monotonic() - last >= again_s:
                last = time.monotonic()
                for connection in held:
                    send(connection, b"x" if again_s >= 1 else data)
            held = [connection for connection in held if not closed(connection)]
            time.sleep(0.01)
        return {"opened": opened, "held": len(held)}

    def flood(self) -> dict[str, Any]:
        opened = 0
        while self.goes_on:
            connection = self.connect()
            if connection is not None:
                connection.close()
                opened += 1
        return {"opened": opened}

    def ask(self) -> dict[str, Any]:
        poll = select.poll()
        connections: dict[int, socket.socket] = {}
        answered = 0
        while self.goes_on:
            while len(connections) < ASKING and (connection := self.connect()):
                connections[connection.fileno()] = connection
                poll.register(connection, select.POLLIN)
                send(connection, self.energy)
            for number, _ in poll.poll(100):
                data = b""
                with contextlib.suppress(OSError):
                    data = connections[number].recv(65536)
                if data:
                    answered += 1
                    send(connections[number], self.energy if answered % 2 else b'{"op":"status"}\n')
                else:
                    poll.unregister(number)
                    connections.pop(number).close()
        return {"answered": answered}


def send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.send(data)


def closed(connection: socket.socket) -> bool:
    """Return whether the peer has closed the connection, without reading data."""
    events = select.poll()
    events.register(connection, select.POLLRDHUP)
    if not events.poll(0):
        return False
    connection.close()
    return True


def main() -> None:
    path, kind, seconds, uid, *job_id = sys.argv[1:]
    files = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if os.geteuid() != int(uid):
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    attacker = Attacker(path, float(seconds), int(job_id[0]) if job_id else 1)
    print(json.dumps(getattr(attacker, kind)()))


main()
