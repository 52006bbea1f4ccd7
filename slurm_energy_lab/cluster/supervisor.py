"""Supervisor: PID 1 in the namespaces of a node or of the lab's daemons.

The supervisor starts and reaps processes.

When a supervisor ends, the kernel kills every process and removes every mount of its namespaces.
`senergy lab down` relies on this. A supervisor does not depend on Slurm.

The supervisor's socket carries JSON lines. The response to
`{"op":"spawn","name":...,"argv":[...],"env":{...},"log":PATH}` is `{"ok":true,"pid":N}` (N in the namespace),
the response to `{"op":"list"}` is `{"ok":true,"processes":[{"name":...,"pid":N,"exit":CODE|null}]}`.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy_lab.cluster import namespaces

SUPERVISOR_MARK = "SENERGY_LAB_SUPERVISOR"
"""Environment variable of every process that a supervisor starts; its value is the lab's directory."""
DETACH = b"s"
"""Byte that the starter writes to the lifeline pipe so that the lab continues when the starter ends."""
_REQUEST_LIMIT = 1 << 20


@dataclass
class _Child:
    name: str
    pid: int
    exit: int | None = None


class Supervisor:
    """Server that starts and watches processes in the namespaces of one node of the lab.

    It listens on a socket. Its process ends when the lifeline pipe, which its creator keeps open, is closed.
    """

    def __init__(self, listener: socket.socket, lifeline_fd: int | None) -> None:
        self._listener = listener
        self._children: dict[str, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._wakeups = (reader, writer)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, self._reap)
        if lifeline_fd is not None:
            self._selector.register(lifeline_fd, selectors.EVENT_READ, self._read_lifeline)

    def serve(self) -> None:
        """Serve requests until the process ends."""
        while True:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _read_lifeline(self, lifeline_fd: int) -> None:
        if os.read(lifeline_fd, 1) != DETACH:
            os._exit(1)
        self._selector.unregister(lifeline_fd)
        os.close(lifeline_fd)

    def _accept(self, listener: socket.socket) -> None:
        connection = listener.accept()[0]
        connection.settimeout(5)
        try:
            with connection:
                self._converse(connection)
        except OSError:
            return  # the client disconnected; most clients only read the PID of the socket's server

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            line = stream.readline(_REQUEST_LIMIT)
        if not line:
            return
        try:
            answer = self._answer(json.loads(line))
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer = {"ok": False, "error": str(error) or type(error).__name__, "code": 1}
        connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "list":
            return {"ok": True, "processes": [vars(child) for child in self._children.values()]}
        if request["op"] != "spawn":
            return {"ok": False, "error": f"unknown op {request['op']!r}", "code": 2}
        existing = self._children.get(request["name"])
        if existing and existing.exit is None:
            return {"ok": False, "error": f"{existing.name} is already running", "code": 7}
        with Path(request["log"]).open("ab") as log:
            process = subprocess.Popen(
                request["argv"],
                env=request["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        process.returncode = 0  # `_reap` waits for it, together with orphans of other processes
        self._children[request["name"]] = _Child(request["name"], process.pid)
        return {"ok": True, "pid": process.pid}

    def _reap(self, wakeups: socket.socket) -> None:
        wakeups.recv(4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children.values():
                if child.pid == pid and child.exit is None:
                    child.exit = os.waitstatus_to_exitcode(status)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(16)
    return listener


def _enter(arguments: argparse.Namespace) -> None:
    namespaces.set_host_name(arguments.host_name)
    view = json.loads(arguments.view.read_text())
    binds = {Path(target): Path(source) for target, source in view["binds"].items()}
    if view["tree"] is None:
        namespaces.enter_lab(binds, Path(view["stage"]))
    else:
        namespaces.enter_node(Path(view["tree"]), binds, Path(view["stage"]))
    for path in view["hidden"]:
        namespaces.detach(Path(path))


def main() -> int:
    """Enter new namespaces and start the supervisor in them.

    The process that called this function exits when the supervisor serves requests.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--host-name", required=True)
    parser.add_argument("--view", type=Path, required=True, help="JSON file: tree, binds, stage, hidden")
    parser.add_argument("--lifeline-fd", type=int, help="end if this pipe is closed without the detach byte")
    arguments = parser.parse_args()
    if arguments.lifeline_fd is not None:
        os.set_inheritable(arguments.lifeline_fd, False)
    namespaces.unshare()
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    _enter(arguments)
    supervisor = Supervisor(_listen(arguments.socket), arguments.lifeline_fd)
    os.write(writer, b"r")
    os.close(writer)
    supervisor.serve()
    return 1


if __name__ == "__main__":
    sys.exit(main())
