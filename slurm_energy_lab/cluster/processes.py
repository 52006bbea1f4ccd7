"""Access from the host to the processes of a lab (cluster of emulated nodes).

The module searches the processes in /proc, sends requests to their supervisors, and sends signals.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.cluster.supervisor import SUPERVISOR_MARK

_PROC = Path("/proc")
_CLIENTS = frozenset({"srun", "salloc", "sattach", "sbatch"})
_LISTENING = "0A"
_OVER = ("", "Z", "X")
"""States of a process that has ended, including zombies (proc(5))."""
_KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD (include/linux/sched.h) in the flags of /proc/PID/stat."""
_EXEC_TIMEOUT_S = 1.0


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return _state_and_flags(pid)[0] not in _OVER


def _state_and_flags(pid: int) -> tuple[str, int]:
    """Return the state and the flags of a process (fields 3 and 9 of /proc/PID/stat, see proc(5)).

    The result is ("", 0) if the process does not exist.
    """
    fields = _read(pid, "stat").rpartition(b") ")[2].split()
    return (fields[0].decode(), int(fields[6])) if len(fields) > 6 else ("", 0)


def _environment(pid: int) -> list[bytes]:
    """Return the initial environment of a process; [b""] if the environment is not readable.

    During execve() a process briefly has neither environment nor arguments. The function waits for the end of
    execve().
    """
    deadline = time.monotonic() + _EXEC_TIMEOUT_S
    while not (data := _read(pid, "environ")) and not _read(pid, "cmdline"):
        state, flags = _state_and_flags(pid)
        if state in _OVER or flags & _KERNEL_THREAD or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    return data.split(b"\0")


def lab_processes(root: Path) -> list[int]:
    """Return the ids of the running processes of a lab (cluster of emulated nodes).

    These are the supervisors of the lab and all processes that they started.
    """
    variable = f"{SUPERVISOR_MARK}={root}".encode()
    return [pid for pid in _pids() if variable in _environment(pid) and is_running(pid)]


def slurm_clients(slurm_conf: Path) -> list[int]:
    """Return the ids of clients of this lab's Slurm that run outside the lab.

    Examples are srun and salloc.
    """
    variable = f"SLURM_CONF={slurm_conf}".encode()
    return [
        pid
        for pid in _pids()
        if _read(pid, "comm").decode(errors="replace").strip() in _CLIENTS
        and variable in _environment(pid)
        and is_running(pid)
    ]


def send_signal(pids: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to those of the given processes that still exist."""
    for pid in pids:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            continue


def host_pid(supervisor_pid: int, inner_pid: int) -> int | None:
    """Return the process id of a supervisor's child in the caller's PID namespace; None if not found."""
    for pid in _pids():
        fields = dict(
            line.split(":\t", 1)
            for line in _read(pid, "status").decode(errors="replace").splitlines()
            if ":\t" in line
        )
        numbers = fields.get("NSpid", "").split()
        if fields.get("PPid") == str(supervisor_pid) and len(numbers) > 1 and numbers[-1] == str(inner_pid):
            return pid
    return None


def listens(port: int) -> bool:
    """Return whether a process listens on a TCP port, on the loopback interface or on all interfaces."""
    for name in ("tcp", "tcp6"):
        for line in _read(os.getpid(), f"net/{name}").decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def accepts(path: Path) -> bool:
    """Return whether a process accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.2)
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def reserve_ports(count: int, start: int) -> list[socket.socket]:
    """Return sockets that are bound to the next free TCP ports of the loopback interface.

    While one of these sockets is open, another process can bind the same port only if that process sets
    SO_REUSEADDR. The daemons of Slurm and of slurm-energy set SO_REUSEADDR, so they can listen on the port.
    This function binds without SO_REUSEADDR, so two labs that start at the same time get different ports.

    Args:
        count: number of ports.
        start: first port that may be used.

    Raises:
        UnavailableError: fewer than `count` ports are free.
    """
    sockets: list[socket.socket] = []
    for port in range(start, 32768):
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", port))  # also fails on a port that another lab has only reserved
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sockets.append(probe)
        if len(sockets) == count:
            return sockets
    release(sockets)
    raise UnavailableError("TCP ports", f"fewer than {count} are free from {start} to 32767")


def release(sockets: Iterable[socket.socket]) -> None:
    """Close the sockets of reserved ports."""
    for probe in sockets:
        probe.close()


class SupervisorClient:
    """Client of one supervisor.

    Args:
        path: the supervisor's socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def pid(self) -> int | None:
        """Return the process id of the supervisor, as seen in the caller's PID namespace.

        Return None if no process serves the supervisor's socket.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.path))
                raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError:
                return None
            return int(struct.unpack("3i", raw)[0]) or None

    def spawn(self, name: str, argv: list[str], env: dict[str, str], log: Path) -> int:
        """Start a process in the Linux namespaces of the node's supervisor.

        Return the id of the process in these namespaces.

        Raises:
            UnavailableError: the supervisor does not respond or cannot start the process.
        """
        request = {"op": "spawn", "name": name, "argv": argv, "env": env, "log": str(log)}
        return int(self._ask(request)["pid"])

    def children(self) -> dict[str, dict[str, Any]]:
        """Return the processes that the supervisor started, by name.

        Each entry has two keys: `pid` is the process id in the supervisor's namespace, and `exit` is the exit
        code, or None while the process runs.
        """
        return {child["name"]: child for child in self._ask({"op": "list"})["processes"]}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10)
                connection.connect(str(self.path))
                with connection.makefile("rwb") as stream:
                    stream.write(json.dumps(request).encode() + b"\n")
                    stream.flush()
                    answer = json.loads(stream.readline())
        except (OSError, ValueError) as error:
            raise UnavailableError(f"lab supervisor {self.path}", str(error)) from None
        if not answer["ok"]:
            raise UnavailableError(f"lab supervisor {self.path}", answer["error"])
        return dict(answer)


def kill_until_gone(find: Callable[[], list[int]], timeout_s: float) -> list[int]:
    """Kill the processes returned by the function `find`, until all of them have ended.

    Every process that `find` has returned once is tracked by its process id. The tracking is needed for the
    first process of a PID namespace. After a kill, the first process waits until the last process of the
    namespace has ended. While the first process waits, its environment is not readable, so `find` no longer
    returns this process.

    Returns:
        The ids of the processes that still exist after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    pids_seen: set[int] = set()
    while True:
        pids = find()
        pids_seen.update(pids)
        remaining = pids or sorted(filter(is_running, pids_seen))
        if not remaining or time.monotonic() > deadline:
            return remaining
        send_signal(pids)
        time.sleep(0.03)
