"""Adjusted values for a program in a job: `slurm_energy.adjusted`.

The values come from senergyd of the node, which queries senergyctld once per job. A program waits once for
each value, for a limited time. The functions of this module raise no error in the program.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final, TypeVar

from slurm_energy.adjustment import PROGRAM_KINDS, AdjustmentKind, checked_value
from slurm_energy.profiling.process_identity import current_process
from slurm_energy.profiling.progress import socket_path

log = logging.getLogger("slurm_energy")

_WAIT_S: Final = 0.5
"""Maximum total time in seconds that a program waits, during which senergyd queries senergyctld."""
_POLL_S: Final = 0.02
_MAX_RESPONSE_BYTES: Final = 4096

T = TypeVar("T", int, float, bool)


class ValueRequester:
    """Reader of the values that senergyctld advises for this program, for example of workers.

    Each kind of value is requested from the agent only once per process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[AdjustmentKind, int | None] = {}
        self._spent_s = 0.0

    def value(self, kind: AdjustmentKind) -> int | None:
        """Return the value that senergyctld advises for a setting of this program.

        An example of a setting is the number of loader processes. The argument `kind` names the setting. The
        result is None if senergyd supplies no value.
        """
        with self._lock:
            if kind not in self._values:
                value = self._request(kind)
                self._values[kind] = None if value is None else _bounded(kind, value)
            return self._values[kind]

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, and keep the requested values.

        Another thread of the parent process may have held the old lock.
        """
        self._lock = threading.Lock()

    def _request(self, kind: AdjustmentKind) -> int | None:
        """Return the value in senergyd's response.

        Return None if the response has no value or does not arrive in time.
        """
        process = current_process()
        if process.job_id is None:
            return None
        message = {"op": "adjusted", "job_id": process.job_id, "name": kind.value}
        path, began_s = Path(socket_path()), time.monotonic()
        end_s = began_s + max(_POLL_S, _WAIT_S - self._spent_s)
        try:
            while (left_s := end_s - time.monotonic()) > 0:
                response = _ask(path, message, left_s)
                if not response.get("pending"):
                    return checked_value(kind, response.get("value"))
                time.sleep(min(_POLL_S, left_s))
        except (OSError, ValueError) as error:
            log.info("slurm_energy: %s is not adjusted: %s", kind.value, error)
        finally:
            self._spent_s += time.monotonic() - began_s
        return None


_requester = ValueRequester()
os.register_at_fork(after_in_child=_requester.reset_after_fork)


def adjusted(name: str, default: T) -> T:
    """Return the value that the diagnosis of earlier runs chose for this run, else `default`.

    Outside Slurm, without senergyd, without an adjustment, or after at most half a second of waiting, the
    result is `default`. Every call in a process returns the same value. Call this function only for values
    that the program then uses, because the request is recorded and the run is compared with earlier runs.

    Args:
        name: `workers`, `pin-memory`, `batch-size`, `checkpoint-interval` (seconds), `accumulation` (steps
            per exchange of gradients), `stage-data` or `balance`; docs/diagnosis.md describes them.
        default: the program's own value. The function returns this value if there is no adjustment. The
            result has the type of `default`.

    Example:
        loader = DataLoader(data, num_workers=slurm_energy.adjusted("workers", default=4))
    """
    try:
        kind = AdjustmentKind(name)
        if kind not in PROGRAM_KINDS:
            raise ValueError("it is an option of sbatch")
        value = _requester.value(kind)
        return default if value is None else type(default)(value)
    except Exception as error:
        log.warning("slurm_energy: %.40s is not adjusted: %s", name, error)
        return default


def _bounded(kind: AdjustmentKind, value: int) -> int:
    """Return an adjusted value, reduced if it is too large for this process.

    Only the number of loader processes is reduced: to at most one process per CPU.
    """
    return min(value, len(os.sched_getaffinity(0))) if kind is AdjustmentKind.WORKERS else value


def _ask(path: Path, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return senergyd's response to a message.

    Raises:
        OSError: senergyd does not answer in time.
        ValueError: senergyd refused the request, or its response is malformed.
    """
    end_s = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(json.dumps(message).encode() + b"\n")
        response = json.loads(_line(connection, end_s))
    if not isinstance(response, dict) or response.get("ok") is not True:
        reason = response.get("error") if isinstance(response, dict) else None
        raise ValueError(str(reason or "malformed response")[:200])
    return response


def _line(connection: socket.socket, end_s: float) -> bytes:
    """Return a line that arrives over a connection, or the text before the end of the connection.

    Raises:
        TimeoutError: the line is not complete at `end_s` (monotonic seconds), even if parts of it arrive
            until then.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_RESPONSE_BYTES:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("senergyd does not answer in time")
        connection.settimeout(left_s)
        part = connection.recv(_MAX_RESPONSE_BYTES - len(line))
        if not part:
            break
        line += part
    return line
