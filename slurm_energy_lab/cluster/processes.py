"""The lab's processes as the host sees them: finding, asking and ending them. Linux /proc and sockets."""

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
"""States of a process that is gone, or only waits for its parent to take note of it (proc(5))."""
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
    """Return whether a process exists and is no zombie."""
    return _state_and_flags(pid)[0] not in _OVER


def _state_and_flags(pid: int) -> tuple[str, int]:
    """Return fields 3 and 9 of /proc/PID/stat (proc(5)); ("", 0) if there is no such process."""
    fields = _read(pid, "stat").rpartition(b") ")[2].split()
    return (fields[0].decode(), int(fields[6])) if len(fields) > 6 else ("", 0)


def _environment(pid: int) -> list[bytes]:
    """Return what a process was started with; b"" of one that cannot be looked into.

    A process in the middle of execve() has neither environment nor arguments for a moment: it is waited for.
    """
    deadline = time.monotonic() + _EXEC_TIMEOUT_S
    while not (data := _read(pid, "environ")) and not _read(pid, "cmdline"):
        state, flags = _state_and_flags(pid)
        if state in _OVER or flags & _KERNEL_THREAD or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    return data.split(b"\0")


def lab_processes(root: Path) -> list[int]:
    """Return the running processes that a supervisor of this lab started, and the supervisors themselves."""
    wanted = f"{SUPERVISOR_MARK}={root}".encode()
    return [pid for pid in _pids() if wanted in _environment(pid) and is_running(pid)]


def slurm_clients(slurm_conf: Path) -> list[int]:
    """Return srun, salloc and the like that talk to this lab from outside it."""
    wanted = f"SLURM_CONF={slurm_conf}".encode()
    return [
        pid
        for pid in _pids()
        if _read(pid, "comm").decode(errors="replace").strip() in _CLIENTS
        and wanted in _environment(pid)
        and is_running(pid)
    ]


def send_signal(pids: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            continue


def host_pid(supervisor_pid: int, inner_pid: int) -> int | None:
    """Translate the PID of a supervisor's child, as the supervisor sees it, to the caller's."""
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
    """Return whether some process listens on this TCP port of the loopback or of all interfaces."""
    for name in ("tcp", "tcp6"):
        for line in _read(os.getpid(), f"net/{name}").decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def accepts(path: Path) -> bool:
    """Return whether a Unix socket accepts connections."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.2)
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def reserve_ports(count: int, start: int) -> list[socket.socket]:
    """Return sockets, one on each of the next free TCP ports of the loopback interface from `start` upwards.

    While a socket is open nobody else gets its port, but for a daemon that sets SO_REUSEADDR, as Slurm's and
    ours do: it may listen there. So two labs that come up at a time do not choose the same ports.

    Raises:
        UnavailableError: fewer are free.
    """
    held: list[socket.socket] = []
    for port in range(start, 32768):
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", port))  # refused where another one only reserves it, too
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.append(probe)
        if len(held) == count:
            return held
    release(held)
    raise UnavailableError("TCP ports", f"fewer than {count} are free from {start} to 32767")


def release(held: Iterable[socket.socket]) -> None:
    """Give reserved ports back."""
    for probe in held:
        probe.close()


class SupervisorClient:
    """Talks to one supervisor.

    Args:
        path: the supervisor's socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def pid(self) -> int | None:
        """Return the supervisor's PID as the caller sees it, None if nothing serves the socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.path))
                raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError:
                return None
            return int(struct.unpack("3i", raw)[0]) or None

    def spawn(self, name: str, argv: list[str], env: dict[str, str], log: Path) -> int:
        """Start a process inside; return its PID there.

        Raises:
            UnavailableError: the supervisor does not answer or cannot start it.
        """
        request = {"op": "spawn", "name": name, "argv": argv, "env": env, "log": str(log)}
        return int(self._ask(request)["pid"])

    def children(self) -> dict[str, dict[str, Any]]:
        """Return what was started, by name: `pid` (inside) and `exit` (None while it runs)."""
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
    """Kill what `find` finds until that is nothing and all of it has ended; return what is left in the end.

    A namespace's first process that was killed can be found no more by its environment while it waits for the
    last process in there.
    """
    deadline = time.monotonic() + timeout_s
    seen: set[int] = set()
    while True:
        found = find()
        seen.update(found)
        left = found or sorted(filter(is_running, seen))
        if not left or time.monotonic() > deadline:
            return left
        send_signal(found)
        time.sleep(0.03)
