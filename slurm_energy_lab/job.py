"""Execution of an emulated compute kernel on the CPUs and GPUs of the calling job.

To start quickly, the module imports few other modules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy_lab.client import DEFAULT_SOCKET, run_kernel

_CPU_VARIABLE = "SENERGY_LAB_CPUS"
_GPU_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def run_in_job(
    kernel: str,
    device: str,
    size: float | None = None,
    full_speed_s: float | None = None,
    *,
    report_progress: bool = False,
    signals: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Run a compute kernel on the CPUs or GPUs of the calling job.

    Outside of a job, the kernel runs on the CPUs or GPUs of the whole node.

    Args:
        kernel: name of a compute kernel or program of the node model.
        device: `cpu` or `gpu`, where the kernel runs.
        size: problem size; None if `full_speed_s` determines it.
        full_speed_s: seconds that the kernel takes at full speed; None for the default.
        report_progress: whether to report the completed units of work to the node's agent.
        signals: values, by name, that the GPUs and the cgroup of the job show while the kernel runs; None
            means the values of the model.

    Returns:
        The result of `client.run_kernel`.

    Raises:
        UsageError: the job has no GPU, or an environment variable that should contain a list of numbers
            contains none.
        UnavailableError: the process is not inside a lab node.
    """
    cpus = cpus_of_job(os.environ)
    gpus = gpus_of_job(os.environ) if device == "gpu" else []
    job_id = job_number(os.environ)
    on_progress = _progress_reporter() if report_progress else None
    return run_kernel(
        *(DEFAULT_SOCKET, kernel, device, size, cpus, gpus, full_speed_s, job_id, on_progress, signals)
    )


def _progress_reporter() -> Callable[[float], None]:
    """Return a function that reports the completed units of work to the node's agent."""
    from slurm_energy.profiling.progress import progress

    reported = 0.0

    def report(units: float) -> None:
        nonlocal reported
        progress(units - reported)
        reported = units

    return report


def cpus_of_job(environment: Mapping[str, str]) -> list[int]:
    """Return the logical CPUs of the calling Slurm step; empty stands for all CPUs of the node."""
    return _numbers(_CPU_VARIABLE, environment.get(_CPU_VARIABLE, ""))


def job_number(environment: Mapping[str, str]) -> int | None:
    """Return Slurm's id of the calling job; None outside a job."""
    text = environment.get("SLURM_JOB_ID", "")
    return int(text) if text.isdecimal() and text.isascii() and int(text) > 0 else None


def gpus_of_job(environment: Mapping[str, str]) -> list[int]:
    """Return the indices of the GPUs of the calling Slurm step.

    Outside a job the list is empty, which stands for all GPUs of the node.

    Raises:
        UsageError: the job has no GPU.
    """
    for name in _GPU_VARIABLES:
        if environment.get(name):
            return _numbers(name, environment[name])
    if environment.get("SLURM_JOB_ID"):
        raise UsageError("this job has no GPU", todo="ask for some: sbatch --gpus-per-node=1")
    return []


def _numbers(name: str, text: str) -> list[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        match = _RANGE.fullmatch(part)
        if not match:
            raise UsageError(f"{name}='{text[:40]}'", "is not a list of numbers")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(numbers)
