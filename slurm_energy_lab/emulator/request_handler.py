"""Execution of the messages that clients send to one emulated node.

The control server receives the messages and sends the responses.
"""

from __future__ import annotations

import errno
import math
import time
from pathlib import Path
from typing import Any

from slurm_energy.errors import ForbiddenError, UsageError
from slurm_energy_lab.emulator.cpu_throttle import CpuThrottle
from slurm_energy_lab.model import KernelRequest, KernelResult, NodeModel, UsageByJob
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree import gpu_signals, stated_signals
from slurm_energy_lab.tree.cpu_lists import parse_list
from slurm_energy_lab.tree.entries import Tree
from slurm_energy_lab.tree.job_cgroups import JobCgroups
from slurm_energy_lab.tree.nvidia import NvidiaGpu
from slurm_energy_lab.tree.resctrl import ResctrlFiles

Message = dict[str, Any]
_STATED = (*gpu_signals.STATED, *stated_signals.STATED)
MAX_GPUS = 64
MAX_SIGNAL = 1e12
MAX_TEXT = 200
"""Maximum number of characters of a file's content in a fault."""


class EmulatorRequestHandler:
    """Executor of the messages that clients send to one emulated node."""

    def __init__(
        self,
        node: str,
        realtime_model: RealtimeModel,
        throttle: CpuThrottle,
        groups: JobCgroups,
        tree: Tree,
        resctrl: ResctrlFiles | None = None,
    ) -> None:
        self._node = node
        self._realtime_model = realtime_model
        self._throttle = throttle
        self._groups = groups
        self._tree = tree
        self._resctrl = resctrl
        self._started = time.time()
        self._running: set[int] = set()
        self._counted_programs: set[int] = set()
        self._stating: dict[int, list[NvidiaGpu]] = {}

    def answer(self, message: Message, uid: int) -> Message:
        """Execute the operation of a message, except the operation `kernel`, and return the response.

        Args:
            message: the message.
            uid: uid of the client.

        Raises:
            UsageError: the operation is unknown or an argument is invalid.
            ForbiddenError: the operation is reserved for root, and the client is another user.
        """
        operation = message.get("op")
        if operation == "truth":
            return self._truth(message.get("jobs") is True)
        if operation == "status":
            return self._status()
        if operation in ("job", "fault"):
            if uid:
                raise ForbiddenError(f"op {operation}: for root only")
            return self._job(message) if operation == "job" else self._fault(message)
        raise UsageError(f"op: unknown operation {str(operation)[:40]!r}")

    def start_kernel(self, message: Message, pid: int) -> int:
        """Start the compute kernel that a message of process `pid` requests, and return the run id.

        Raises:
            UsageError: the compute kernel or device is unknown, or a number is invalid.
        """
        request, stated = _kernel_request(message), _stated_signals(message)
        with self._realtime_model.modify() as model:
            run_id = model.submit(request, model.now_s)
        self._running.add(run_id)
        if self._resctrl is not None:
            self._resctrl.start_task(run_id, lambda: [pid])
        if request.job_id is not None:
            self._groups.create_group(request.job_id)
        self._state_signals(run_id, request, stated)
        return run_id

    def finished_kernel(self, run_id: int) -> Message | None:
        """Return the response for a finished compute kernel; None while the compute kernel runs.

        The stored result is deleted, so the end of a compute kernel is reported only once.
        """
        with self._realtime_model.now() as model:
            result = model.result(run_id)
            if result is None:
                return None
            model.forget(run_id)
            unix_s = self._realtime_model.unix_s(result.end_s)
        self._end_task(run_id)
        return _kernel_answer(result, unix_s)

    def progress_units(self, run_id: int) -> float:
        """Return the progress that a running compute kernel can report now, in the kernel's units."""
        with self._realtime_model.now() as model:
            report = model.progress_report(run_id)
        return report[0] if report else 0.0

    def cancel_kernel(self, run_id: int) -> None:
        """Cancel a compute kernel whose client has disconnected."""
        with self._realtime_model.modify() as model:
            model.forget(run_id)
        self._end_task(run_id)

    def _state_signals(self, run_id: int, request: KernelRequest, values: dict[str, float]) -> None:
        """Make emulated GPUs and a job's cgroup show given signal values while a compute kernel runs.

        The values come from the message that started the kernel.
        """
        of_gpus = {name: value for name, value in values.items() if name in gpu_signals.STATED}
        of_job = {name: value for name, value in values.items() if name in stated_signals.STATED}
        for index in request.gpus or range(MAX_GPUS) if of_gpus else ():
            gpu = self._tree.get(f"/dev/nvidia{index}")
            if isinstance(gpu, NvidiaGpu):
                gpu.signals.state(run_id, of_gpus)
                self._stating.setdefault(run_id, []).append(gpu)
        if of_job and request.job_id is not None:
            self._groups.state_signals(request.job_id, run_id, of_job)

    def _end_task(self, run_id: int) -> None:
        self._running.discard(run_id)
        for gpu in self._stating.pop(run_id, ()):
            gpu.signals.end(run_id)
        self._groups.end_signals(run_id)
        if self._resctrl is not None:
            self._resctrl.end_task(run_id)
        with self._realtime_model.now() as model:
            for counters in model.task_counters():
                counters.forget(run_id)

    def remove_stale_groups(self) -> None:
        """Remove the emulated control groups (cgroups) of jobs that ended at least a minute ago."""
        if self._groups.has_groups:
            self._groups.remove_stale(self._throttle.has_job)

    def _truth(self, with_jobs: bool) -> Message:
        with self._realtime_model.now() as model:
            names = model.components()
            answer = {
                "ok": True,
                "time": self._realtime_model.unix_s(model.now_s),
                "energy_joules": {name: model.energy_joules(name) for name in names},
                "power_watts": {name: model.power_watts(name) for name in names},
            }
            return answer | _truth_by_job(model) if with_jobs else answer

    def _status(self) -> Message:
        profile = self._realtime_model.profile
        with self._realtime_model.now() as model:
            state = _model_state(model, profile.cpu.packages, profile.gpu_count)
        return {
            "ok": True,
            "node": self._node,
            "profile": profile.name,
            "description": profile.description,
            "cpus": profile.cpu.cpus,
            "gpus": profile.gpu_count,
            "started": self._started,
            "kernels": len(self._running),
            "throttle": self._throttle.status(),
            "model": state,
        }

    def _job(self, message: Message) -> Message:
        job_id, cpus = _job_id(message), message.get("cpus")
        if job_id is None:
            raise UsageError("job_id: missing")
        if cpus is not None and not isinstance(cpus, str):
            raise UsageError("cpus: not a CPU list such as 0-3")
        numbers = parse_list(cpus) if cpus else None
        if numbers and numbers[-1] >= self._realtime_model.profile.cpu.cpus:
            raise UsageError(f"cpus: the node has no CPU {numbers[-1]}")
        procs = self._throttle.register(job_id, numbers)
        with self._realtime_model.now() as model:
            model.usage().add_job(job_id, model.now_s)
        self._groups.create_group(job_id)
        if self._resctrl is not None and procs and job_id not in self._counted_programs:
            self._counted_programs.add(job_id)
            self._resctrl.start_task(-job_id, lambda: _pids(procs[0]))
        return {"ok": True, "procs": procs}

    def _fault(self, message: Message) -> Message:
        """Inject a fault into an emulated file.

        Each access to the file then fails with the error number in the message, or shows the text in the
        message instead of the content. A message with neither an error number nor a text ends the fault.
        """
        path, name, text = message.get("path"), message.get("errno"), message.get("text")
        if not isinstance(path, str) or not path.startswith("/"):
            raise UsageError("path: not an absolute path")
        if text is not None and not (isinstance(text, str) and 0 < len(text) <= MAX_TEXT):
            raise UsageError(f"text: not a text of 1 to {MAX_TEXT} characters")
        self._tree.texts.pop(path, None)
        self._tree.faults.pop(path, None)
        if text is not None:
            self._tree.texts[path] = text.encode() + b"\n"
        if name is None:
            return {"ok": True}
        code = getattr(errno, name, None) if isinstance(name, str) and name.startswith("E") else None
        if not isinstance(code, int):
            raise UsageError(f"errno: {str(name)[:40]!r} is not the name of an error, such as EIO")
        self._tree.faults[path] = code
        return {"ok": True}


def _pids(path: str) -> list[int]:
    """Return the process ids in a file `cgroup.procs`; an empty list if the control group was removed."""
    try:
        return [int(word) for word in Path(path).read_text().split()]
    except OSError:
        return []


def _kernel_request(message: Message) -> KernelRequest:
    kernel, device = message.get("kernel"), message.get("device", "cpu")
    if not isinstance(kernel, str) or not isinstance(device, str):
        raise UsageError("kernel: name and device are texts")
    return KernelRequest(
        kernel=kernel,
        device=device,
        size=_positive(message, "size"),
        cpus=_indices(message, "cpus"),
        gpus=_indices(message, "gpus"),
        full_speed_s=_positive(message, "full_speed_s"),
        job_id=_job_id(message),
    )


def _stated_signals(message: Message) -> dict[str, float]:
    """Return the signals that a message about a compute kernel reports.

    The signals describe the use of the GPUs and of the job.

    Raises:
        UsageError: a name is unknown, or a value is not a number of at least 0.
    """
    values = message.get("signals") or {}
    if not isinstance(values, dict):
        raise UsageError("signals: not an object")
    for name, value in values.items():
        if name not in _STATED:
            raise UsageError(f"signals: {str(name)[:40]!r} is unknown", todo=f"one of {', '.join(_STATED)}")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= MAX_SIGNAL:
            raise UsageError(f"signals: {name} {str(value)[:40]!r} is not a number from 0 to {MAX_SIGNAL:g}")
    return {name: float(value) for name, value in values.items()}


def _job_id(message: Message) -> int | None:
    job_id = message.get("job_id")
    if job_id is not None and (type(job_id) is not int or job_id <= 0):
        raise UsageError(f"job_id: {str(job_id)[:40]!r} is not a job number")
    return job_id


def _positive(message: Message, key: str) -> float | None:
    value = message.get(key)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise UsageError(f"{key}: {str(value)[:40]!r} is not a positive number")
    return float(value)


def _indices(message: Message, key: str) -> tuple[int, ...]:
    values = message.get(key) or []
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise UsageError(f"{key}: not a list of numbers")
    return tuple(values)


def _kernel_answer(result: KernelResult, end_unix_s: float) -> Message:
    return {
        "ok": True,
        "kernel": result.kernel,
        "device": result.device,
        "size": result.size,
        "seconds": result.seconds,
        "start": end_unix_s - result.seconds,
        "end": end_unix_s,
        "flops": result.flops,
        "bytes": result.bytes,
        "energy_joules": result.energy_joules,
    }


def _truth_by_job(model: NodeModel) -> Message:
    usage, now_s = model.usage(), model.now_s
    return {
        "jobs": {str(job): _usage_message(usage, job, now_s) for job in usage.jobs()},
        "no_job": _usage_message(usage, None, now_s),
        "idle_joules": usage.idle_joules(now_s),
        "system_cpu_seconds": usage.system_cpu_seconds(now_s),
    }


def _usage_message(usage: UsageByJob, job: int | None, now_s: float) -> Message:
    return {
        "cpu_seconds": usage.cpu_seconds(job, now_s),
        "dynamic_joules": usage.dynamic_joules(job, now_s),
    }


def _model_state(model: NodeModel, packages: int, gpus: int) -> Message:
    return {
        "power_watts": model.power_watts("node"),
        "packages": [
            {"average_watts": model.package_average_watts(i), "throttled_s": model.package_throttled_s(i)}
            for i in range(packages)
        ],
        "gpus": [
            {
                "graphics_clock_mhz": state.graphics_clock_mhz,
                "limit_watts": state.limit_watts,
                "locked_clocks_mhz": model.gpu_clocks(i),
                "power_watts": state.power_watts,
            }
            for i, state in ((i, model.gpu_state(i)) for i in range(gpus))
        ],
    }
