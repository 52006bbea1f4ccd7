"""Plan of the characterisation of a node with reference kernels: settings and run times.

The kernels are grouped in classes. For each class, one kernel runs at several values of one hardware
setting (a sweep). The jobs of a sweep carry the tag `senergy-characterise/CLASS`. From these jobs the
controller learns how time and power of this kind of hardware depend on the setting (response curves).
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.config import BoundsConfig
from slurm_energy.errors import NotFoundError, UnavailableError, UsageError
from slurm_energy.quantities import is_number, shown
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.sweep.reference_kernels import CLASSES, MARK
from slurm_energy.tuning.learned_run import CHARACTERISATION_TAG, MIN_RUN_S
from slurm_energy.tuning.sweep.factors import Factor, make_factor

MAX_MINUTES: Final = 20
SHARES: Final = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Values of the knob, as fractions of its value before the job."""
_MAX_SECONDS: Final = 60
_MIN_SECONDS: Final = math.ceil(1.2 * MIN_RUN_S)
_START_S: Final = 15.0
"""Time between the end of a job and the start of the next kernel. Assumed."""
_SLOWDOWN: Final = 1.4
"""Mean time ratio of a kernel over SHARES, with a margin. Assumed."""
_DESCRIBE_S: Final = 30.0
"""Duration of the job that describes the node. Assumed."""
_DESCRIBE_TIMEOUT_S: Final = 240.0
_MODULE: Final = "slurm_energy.sweep.reference_kernels"
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d{1,4})", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Node to be characterised, and options for submitting jobs to the node.

    Attributes:
        node: name of the node.
        gpu: whether the kernels run on GPUs.
        options: further options of sbatch and srun.
    """

    node: str
    gpu: bool
    options: tuple[str, ...]

    def job_options(self, time_limit_minutes: int, cpus: int, gpus: int) -> list[str]:
        """Return the submission options of a job that has the whole node to itself.

        Args:
            time_limit_minutes: time limit of the job in minutes.
            cpus: CPUs of the node.
            gpus: GPUs of the node.
        """
        own = ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}", f"--nodelist={self.node}", "--exclusive"]
        if self.gpu:
            own.append(f"--gpus-per-node={gpus}")
        return [*own, f"--time={time_limit_minutes}", *self.options]


@dataclass(frozen=True, slots=True)
class ClassSweep:
    """Planned measurements of one class of reference kernels, with one setting that varies.

    The measurements are a part of the characterisation of the site's hardware.

    Attributes:
        name: class of the kernel.
        script: content of the batch script.
        factor: the setting that varies (knob), with its values.
    """

    name: str
    script: str
    factor: Factor

    @property
    def tag(self) -> str:
        """Value of --energy-tag of the jobs of this sweep."""
        return CHARACTERISATION_TAG + self.name


def node_size(node: str) -> tuple[int, int]:
    """Return the numbers of CPUs and GPUs of a node, according to Slurm.

    Raises:
        NotFoundError: Slurm does not know the node.
        UnavailableError: slurmctld does not answer.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,255}", node, re.ASCII):
        raise UsageError(f"-w {shown(node)}", "is not the name of one node")
    output = CommandRunner()(["sinfo", "-h", "-N", "-n", node, "-o", "%c %G"])
    cpus, _, resources = next(iter(output.splitlines()), "").partition(" ")
    if not cpus.isdecimal():
        raise NotFoundError(f"node {node}", "Slurm has no such node", "sinfo -N lists them")
    return int(cpus), sum(int(count) for count in _GPUS.findall(resources))


def kernel_seconds(minutes: float, jobs: int) -> int:
    """Return the run time to choose for a kernel so that all measured jobs fit into the given time.

    The result is the longest such run time, for a kernel at full speed.

    The last job can start only if its time limit ends within the given time. The whole time limit of the
    last job is therefore reserved after the expected end of all earlier jobs.

    Raises:
        UsageError: the jobs would be too short to be measured.
    """
    for seconds in range(_MAX_SECONDS, _MIN_SECONDS - 1, -1):
        if _planned_s(seconds, jobs) <= 60.0 * minutes:
            return seconds
    needed = math.ceil(_planned_s(_MIN_SECONDS, jobs) / 60.0)
    todo = "use fewer values or classes" if needed > MAX_MINUTES else ""
    raise UsageError(f"--time {minutes:g}", f"{jobs} jobs need {needed} minutes", todo)


def _planned_s(seconds: int, jobs: int) -> float:
    return _DESCRIBE_S + (jobs - 1) * (_SLOWDOWN * seconds + _START_S) + 60.0 * job_minutes(seconds)


def job_minutes(seconds: float) -> int:
    """Return the time limit, in minutes, of a job that runs a kernel of the given length.

    The limit is three times the length in `seconds`, plus up to two minutes. The job therefore also ends in
    time if the kernel is slower than expected.
    """
    return math.ceil(3.0 * seconds / 60.0) + 1


def describe_node(request: NodeRequest, cpus: int, gpus: int, *, measure: bool) -> dict[str, Any]:
    """Measure the speed of a node and read its ranges of settings, with a short job on the node.

    The job measures the reference kernels. It reads the ranges of the CPU frequency and of the GPU power
    limit.

    Args:
        request: node to describe, and options for submitting its jobs.
        cpus: CPUs of the node.
        gpus: GPUs of the node.
        measure: whether to measure the speed of the kernels, too.

    Returns:
        The object of `reference_kernels.describe`.

    Raises:
        UnavailableError: the job failed, or its output has no description.
    """
    kernel = [sys.executable, "-P", "-m", _MODULE, "--describe", *(["--gpu"] if request.gpu else [])]
    options = request.job_options(math.ceil(_DESCRIBE_TIMEOUT_S / 60), cpus, gpus)
    command = ["srun", *options, "--energy-policy=monitor", *kernel, "--seconds", "3" if measure else "0"]
    output = CommandRunner(_DESCRIBE_TIMEOUT_S)(command)
    lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]
    try:
        description = json.loads(lines[-1])
        if "missing" in description:
            missing = f"not installed there: {shown(str(description['missing']), 200)}"
            todo = "install it, or give --kernel CLASS=COMMAND for each class"
            raise UnavailableError(f"node {request.node}", missing, todo)
        speeds = description["units_per_s"]
        ranges = [description[key] for key in ("cpu_mhz", "gpu_watts")]
    except (IndexError, KeyError, TypeError, ValueError):
        raise UnavailableError(f"node {request.node}", "its description cannot be read") from None
    numbers = [number for pair in ranges if pair is not None for number in pair]
    if not all(is_number(number) and number > 0 for number in [*numbers, *speeds.values()]):
        raise UnavailableError(f"node {request.node}", "its description has values out of range")
    return dict(description)


def default_factor(description: Mapping[str, Any], bounds: BoundsConfig, *, gpu: bool) -> Factor:
    """Return the setting that `senergy tune characterise` varies if the user names none.

    On GPUs it is the GPU power limit. Otherwise it is the upper bound of the CPU frequency. The values to
    try are the fractions `SHARES` of the value in force, as far as the hardware and the site allow them.

    Args:
        description: result of `describe_node`.
        bounds: minimum and maximum settings that the site accepts from jobs.
        gpu: whether the kernels run on GPUs.

    Raises:
        UnavailableError: the node does not have this setting, or no fraction is allowed.
    """
    name, key, step = ("gpu-cap", "gpu_watts", 5.0) if gpu else ("cpu-freq", "cpu_mhz", 100.0)
    if description[key] is None:
        what = "GPU power limit" if gpu else "CPU frequency bound"
        raise UnavailableError("senergy tune characterise", f"the node has no {what}", "name a knob")
    low, high = description[key]
    bounds_key = "gpu_cap_watts" if gpu else "cpu_freq_mhz"
    min_value, max_value = getattr(bounds, bounds_key)
    values = [round(share * high / step) * step for share in SHARES]
    values = [value for value in values if max(low, min_value) <= value <= max_value and value < high]
    if not values:
        why = f"--{name}: no value from {low:g} to {high:g} is within bounds.{bounds_key}"
        todo = f"the bounds are {min_value:g} to {max_value:g}: change them, or name another knob"
        raise UnavailableError("senergy tune characterise", why, todo)
    return make_factor(name, values)


def class_sweep(
    name: str, factor: Factor, seconds: float, *, gpu: bool, command: str | None, units_per_s: float | None
) -> ClassSweep:
    """Return the sweep (runs at several settings) of one class of reference kernels.

    Args:
        name: name of the class.
        factor: setting (knob) to vary.
        seconds: run time of the kernel at full speed.
        gpu: whether the kernel runs on GPUs.
        command: command line of the site's own kernel, in which `{seconds}` is replaced; None means the
            kernel of `reference_kernels`.
        units_per_s: measured units per second of the reference kernel; None with `command`.
    """
    if command is None:
        units = max(1, round(seconds * (units_per_s or 0.0)))
        own = [sys.executable, "-P", "-m", _MODULE, name, "--units", str(units), *(["--gpu"] if gpu else [])]
        command = shlex.join(own)
    return ClassSweep(name, f"#!/bin/sh\nexec {command.replace('{seconds}', f'{seconds:.0f}')}\n", factor)


def parse_kernels(texts: Sequence[str]) -> dict[str, str]:
    """Return the site's own kernel commands by class, from texts `CLASS=COMMAND`.

    Raises:
        UsageError: the class is unknown, or the command is empty or has a line break.
    """
    kernels: dict[str, str] = {}
    for text in texts:
        name, _, command = text.partition("=")
        if name not in CLASSES or not command.strip() or not command.isprintable():
            todo = f"write CLASS=COMMAND with CLASS one of {', '.join(CLASSES)}"
            raise UsageError(f"--kernel '{shown(text)}'", "is invalid", todo)
        kernels[name] = command
    return kernels
