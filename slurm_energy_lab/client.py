"""Client of an emulated node's control socket.

With this client, a job runs compute kernels, reads exact energies and registers itself. Every job imports
this module. To start quickly, the module imports few other modules.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_energy.errors import EnergyError, UnavailableError

DEFAULT_SOCKET = "/run/senergy-lab/emulator.sock"
REPLY_TIMEOUT_S = 10.0
_READ_BYTES = 65536


def run_kernel(
    socket_path: str | os.PathLike[str],
    kernel: str,
    device: str = "cpu",
    size: float | None = None,
    cpus: Sequence[int] = (),
    gpus: Sequence[int] = (),
    full_speed_s: float | None = None,
    job_id: int | None = None,
    on_progress: Callable[[float], None] | None = None,
    signals: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Execute a compute kernel on the emulated device and wait until the kernel has ended.

    Args:
        socket_path: the node's control socket; `DEFAULT_SOCKET` inside the node.
        kernel: name of a compute kernel or program of the node model.
        device: `cpu` or `gpu`, where the kernel runs.
        size: problem size in the kernel's own unit; None if `full_speed_s` determines it.
        cpus: logical CPUs that share the problem or feed the GPUs; empty for all CPUs of the node.
        gpus: GPUs, each of which runs the whole problem; empty for all GPUs of the node.
        full_speed_s: seconds that the kernel takes at full speed. This time determines the size if `size`
            is None. If both are None, the time is 10 seconds.
        job_id: Slurm's id of the job to which the kernel belongs; None for no job.
        on_progress: function that is called with the whole units that the kernel has completed, whenever
            their number changes.
        signals: signals that the GPUs and the cgroup of the job show while the kernel runs, by name; None
            means the signals of the model.

    Returns:
        `seconds` (run time on the emulated device), `size`, `flops`, `bytes`, `start` and `end` (Unix
        seconds), and `energy_joules` by component.

    Raises:
        UnavailableError: the emulator does not respond.
        EnergyError: the emulator rejected the request; the exit code is the emulator's.
    """
    message = {
        "op": "kernel",
        "kernel": kernel,
        "device": device,
        "size": size,
        "cpus": list(cpus),
        "gpus": list(gpus),
        "full_speed_s": full_speed_s,
        "job_id": job_id,
        "signals": dict(signals or {}),
    }
    if on_progress is None:
        return ask(socket_path, message, timeout_s=None)
    return ask(socket_path, {**message, "progress": True}, timeout_s=None, on_progress=on_progress)


def truth(socket_path: str | os.PathLike[str] = DEFAULT_SOCKET, jobs: bool = False) -> dict[str, Any]:
    """Return the exact energy and power of an emulated node, as the node model computes them.

    Args:
        socket_path: the node's control socket.
        jobs: whether to include the usage of each job.

    Returns:
        `energy_joules` and `power_watts` by component, and `time`, the Unix time of both. If `jobs` is True,
        there are four more keys. `jobs` (by job id as text) and `no_job` contain `cpu_seconds` and
        `dynamic_joules` by component. `idle_joules` (by component) and `system_cpu_seconds` are for the whole
        node.
    """
    return ask(socket_path, {"op": "truth", "jobs": jobs})


def status(socket_path: str | os.PathLike[str] = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return profile, throttling and model state of an emulated node."""
    return ask(socket_path, {"op": "status"})


def register_job(socket_path: str | os.PathLike[str], job_id: int, cpus: str | None = None) -> list[str]:
    """Register a job with the emulator.

    Only root may do this.

    Args:
        socket_path: the node's control socket.
        job_id: Slurm's job id.
        cpus: CPU list such as `0-3`; None for all CPUs of the node.

    Returns:
        `cgroup.procs` files to which the ids of the job's processes must be written; empty if
        the emulator does not throttle processes.
    """
    return list(ask(socket_path, {"op": "job", "job_id": job_id, "cpus": cpus})["procs"])


def set_fault(
    socket_path: str | os.PathLike[str], path: str, errno_name: str | None, text: str | None = None
) -> None:
    """Make open, read and write of an emulated file fail with an error such as `EIO`.

    An error name of None ends the fault. A path that ends in `/` stands for all files below this directory.
    NVML reports a GPU as lost if the GPU's device file returns `EIO`. With `text`, reading the file succeeds
    and returns this text.
    """
    ask(socket_path, {"op": "fault", "path": path, "errno": errno_name, "text": text})


def ask(
    socket_path: str | os.PathLike[str],
    message: dict[str, Any],
    timeout_s: float | None = REPLY_TIMEOUT_S,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Send one message and return the response.

    Args:
        socket_path: the node's control socket.
        message: request to the emulator.
        timeout_s: maximum wait for the response; None for no maximum.
        on_progress: function that is called with the completed units in each progress report. The reports
            arrive before the response. None if the message requests no progress reports.

    Raises:
        UnavailableError: the connection failed, or no response arrived within the timeout.
        EnergyError: the emulator rejected the request.
    """
    path = os.fspath(socket_path)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(REPLY_TIMEOUT_S)
            peer.connect(path)
            peer.sendall(json.dumps(message).encode() + b"\n")
            peer.settimeout(timeout_s)
            answer = _answer(peer, on_progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"emulator at {path}", reason, "is this inside a lab node?") from None
    if answer is None:
        raise UnavailableError(f"emulator at {path}", "closed the connection")
    if not answer.get("ok"):
        refusal = EnergyError(str(answer.get("error", "refused")))
        refusal.exit_code = int(answer.get("code", refusal.exit_code))
        raise refusal
    return answer


def _answer(peer: socket.socket, on_progress: Callable[[float], None] | None) -> dict[str, Any] | None:
    """Return the response to a request; None if the connection ends before the response arrives.

    Reports of progress that arrive before the response are passed to `on_progress`.
    """
    data = b""
    while True:
        while b"\n" not in data:
            more = peer.recv(_READ_BYTES)
            if not more:
                return None
            data += more
        line, _, data = data.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if on_progress is None or not answer.get("ok") or "seconds" in answer:
            return answer
        on_progress(answer["units"])
