"""Server of an emulated node's control socket: its clients run compute kernels and read exact energies.

Clients also register jobs and inject faults. One thread serves all connections. The thread also reports the
end of compute kernels. Periodically it runs the CPU throttle and ends the power meter's intervals.
docs/reference/protocol.md describes the protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_energy.errors import EXIT_FAILURE, EXIT_USAGE, AlreadyRunningError, EnergyError, UsageError
from slurm_energy_lab.emulator.cpu_throttle import TICK_S, CpuThrottle
from slurm_energy_lab.emulator.request_handler import EmulatorRequestHandler
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.hwmon import INTERVAL_S, AcpiPowerMeter

MAX_LINE_BYTES = 64 * 1024
_READ_BYTES = 16 * 1024
_BACKLOG = 64
_CREDENTIALS = struct.Struct("3i")
_STALE_CHECK_S = 10.0


class _Connection:
    """Connection of one client.

    Attributes:
        peer: socket that is connected to the client.
        pid, uid: process id and uid of the client, as reported by Linux.
        buffer: received bytes that are not processed yet.
        run_id: run id of the compute kernel whose end the client awaits; None if the client waits for no
            compute kernel.
        reported_units: number of whole units of progress that were last reported to the client; None if the
            client does not request progress reports.
    """

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid = _CREDENTIALS.unpack(credentials)[:2]
        self.buffer = b""
        self.run_id: int | None = None
        self.reported_units: float | None = None

    def next_line(self) -> bytes | None:
        """Return the next complete line that the client has sent; None if no complete line has arrived.

        Raises:
            UsageError: the line is too long.
        """
        line, newline, rest = self.buffer.partition(b"\n")
        if len(line) > MAX_LINE_BYTES:
            raise UsageError("message: longer than 64 KiB")
        if not newline:
            return None
        self.buffer = rest
        return line


class _Timer:
    """Periodic action.

    The action runs only while the function `condition` returns True.
    """

    def __init__(self, interval_s: float, action: Callable[[], None], condition: Callable[[], bool]) -> None:
        self.interval_s = interval_s
        self._action = action
        self._condition = condition
        self._due_s = time.monotonic() + interval_s

    def run(self) -> float | None:
        """Run the action of this timer if the action is due.

        Returns:
            Seconds until the action is due again; None while the timer's condition is False.
        """
        if not self._condition():
            self._due_s = time.monotonic() + self.interval_s
            return None
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._action()
            self._due_s = max(self._due_s + self.interval_s, time.monotonic())
        return max(0.0, self._due_s - time.monotonic())


class ControlServer:
    """Server on the control socket of an emulated node.

    The server runs from `start` until `stop`.
    """

    def __init__(
        self,
        path: Path,
        realtime_model: RealtimeModel,
        requests: EmulatorRequestHandler,
        throttle: CpuThrottle,
        meter: AcpiPowerMeter,
    ) -> None:
        self._path = path
        self._realtime_model = realtime_model
        self._requests = requests
        self._throttle = throttle
        self._timers = [
            _Timer(TICK_S, throttle.tick, lambda: throttle.busy),
            _Timer(INTERVAL_S, meter.sample, lambda: True),
            _Timer(_STALE_CHECK_S, requests.remove_stale_groups, lambda: True),
        ]
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Start a thread that serves the control socket."""
        self._listener.setblocking(False)
        for source in (self._listener, self._realtime_model.change_event_fd, self._stop_fd):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, close all connections, and remove the CPU quotas and the socket."""
        if self._thread.is_alive():
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join(timeout=5)
        for connection in list(self._connections.values()):
            self._hang_up(connection)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        self._throttle.close()
        self._selector.close()
        os.close(self._stop_fd)

    def _run(self) -> None:
        wait_s = 0.0
        while True:
            for key, _ in self._selector.select(wait_s):
                if key.fd == self._stop_fd:
                    return
                self._dispatch(key)
            wait_s = self._run_due_work()

    def _dispatch(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fd == self._realtime_model.change_event_fd:
            self._realtime_model.clear_change_event()
        elif key.fd in self._connections:
            self._receive(self._connections[key.fd])

    def _run_due_work(self) -> float:
        """Send the results of finished compute kernels and run the timers that are due.

        Returns:
            Seconds until the next work is due.
        """
        waits = [wait for timer in self._timers if (wait := timer.run()) is not None]
        waiting = [item for item in self._connections.values() if item.run_id is not None]
        if waiting:
            self._report_kernels(waiting)
            with self._realtime_model.now() as model:
                next_s, now_s = model.next_event_s(), model.now_s
            if next_s is not None:
                waits.append(max(0.0, next_s - now_s))
        return min(waits)

    def _report_kernels(self, waiting: list[_Connection]) -> None:
        """Send the results of finished compute kernels to the clients that wait for them.

        If a kernel still runs, send a progress report to its client if the client requested reports.
        """
        for connection in waiting:
            if connection.run_id is None:
                continue
            try:
                answer = self._requests.finished_kernel(connection.run_id)
            except EnergyError as error:
                answer = _refusal(error)
            if answer is not None:
                connection.run_id = None
                self._send(connection, answer)
                self._serve_lines(connection)
            elif connection.reported_units is not None:
                self._report_progress(connection, connection.run_id)

    def _report_progress(self, connection: _Connection, run_id: int) -> None:
        units = float(int(self._requests.progress_units(run_id)))
        if units != connection.reported_units:
            connection.reported_units = units
            self._send(connection, {"ok": True, "units": units})

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        peer.setblocking(False)
        connection = _Connection(peer)
        self._connections[peer.fileno()] = connection
        self._selector.register(peer, selectors.EVENT_READ)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.peer.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(connection.buffer) > 2 * MAX_LINE_BYTES:
            self._hang_up(connection)
            return
        connection.buffer += data
        self._serve_lines(connection)

    def _serve_lines(self, connection: _Connection) -> None:
        """Process the complete lines (messages) that a client has sent.

        While a compute kernel of the client runs, further lines of the client are not processed.
        """
        while connection.run_id is None and connection.peer.fileno() >= 0:
            try:
                line = connection.next_line()
                if line is None:
                    return
                answer = self._answer(connection, line)
            except EnergyError as error:
                answer = _refusal(error)
                if len(connection.buffer) > MAX_LINE_BYTES:
                    self._send(connection, answer)
                    self._hang_up(connection)
                    return
            if answer is not None:
                self._send(connection, answer)

    def _answer(self, connection: _Connection, line: bytes) -> dict[str, Any] | None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError("message: not JSON") from None
        if not isinstance(message, dict):
            raise UsageError("message: not a JSON object")
        if message.get("op") == "kernel":
            connection.run_id = self._requests.start_kernel(message, connection.pid)
            connection.reported_units = 0.0 if message.get("progress") is True else None
            return None
        return self._requests.answer(message, connection.uid)

    def _send(self, connection: _Connection, answer: dict[str, Any]) -> None:
        """Send one line to a client.

        If the client does not read the line, close the connection.
        """
        try:
            connection.peer.setblocking(True)
            connection.peer.settimeout(1.0)
            connection.peer.sendall(json.dumps(answer).encode() + b"\n")
            connection.peer.setblocking(False)
        except OSError:
            self._hang_up(connection)

    def _hang_up(self, connection: _Connection) -> None:
        """Close a connection, and cancel the compute kernel that the client awaits."""
        if connection.run_id is not None:
            self._requests.cancel_kernel(connection.run_id)
            connection.run_id = None
        descriptor = connection.peer.fileno()
        if descriptor >= 0:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection.peer)
            self._connections.pop(descriptor, None)
            connection.peer.close()


def _refusal(error: EnergyError) -> dict[str, Any]:
    code = error.exit_code if error.exit_code != EXIT_FAILURE else EXIT_USAGE
    return {"ok": False, "error": str(error), "code": code}


def _listen(path: Path) -> socket.socket:
    """Create the listening control socket. Every user may connect to this socket.

    An existing socket that no process serves is replaced.

    Raises:
        AlreadyRunningError: another emulator already serves the socket.
    """
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            raise AlreadyRunningError(f"{path}: an emulator answers there")
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(_BACKLOG)
    return listener
