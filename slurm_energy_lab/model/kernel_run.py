"""Progress of running compute kernels: current phase and remaining work of each kernel part.

A kernel part is executed by one GPU, or by all CPUs of the run together. The executing devices set the rate
of the part. The module uses neither power nor frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slurm_energy_lab.model.job_integrals import Job
from slurm_energy_lab.model.kernels import Factors, KernelSpec
from slurm_energy_lab.model.requests import KernelResult


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """Work of one phase of a compute kernel on one part of the hardware.

    Attributes:
        flops: number of operations.
        bytes: number of bytes read from and written to memory.
        overlap: the share of the shorter time (compute or memory) that overlaps with the longer time.
        factors: efficiency and switching activity.
        host_cycles: cycles of one host thread.
        wait_s: seconds of waiting at any frequency.
        units: units of progress that the phase completes.
    """

    flops: float
    bytes: float
    overlap: float
    factors: Factors
    host_cycles: float = 0.0
    wait_s: float = 0.0
    units: float = 0.0


class KernelPart:
    """Part of a compute kernel: the work that one GPU executes, or that all CPUs of the run execute together.

    Attributes:
        task: work of the current phase.
        end_s: time at which the current phase ends at the current rates; infinity while all rates are 0.
        job: Slurm's job id of the job to which the kernel belongs; None for no job.
        host_khz: frequency of the core whose thread feeds the GPU; infinity until the node model sets it.
        run_id: id of the kernel run.
    """

    __slots__ = (
        "_cycles_left",
        "_index",
        "_rates",
        "_remaining",
        "_since_s",
        "_tasks",
        "_unit_s",
        "_units",
        "end_s",
        "host_khz",
        "job",
        "run_id",
        "task",
    )

    def __init__(
        self, spec: KernelSpec, device: str, size: float, now_s: float, job: Job = None, run_id: int = 0
    ) -> None:
        scale = spec.scale(size)
        cycles = max(1, math.ceil(size)) if spec.looped else 1
        self._tasks = tuple(
            PhaseWork(
                phase.flops * scale / cycles,
                phase.bytes * scale / cycles,
                phase.overlap,
                phase.factors(device),
                phase.host_cycles * scale / cycles,
                phase.wait_s * scale / cycles,
                phase.units,
            )
            for phase in spec.phases
        )
        self._units = 0.0
        self._unit_s = now_s
        self._cycles_left = cycles
        self._index = 0
        self._remaining = 1.0
        self._rates: dict[int, float] = {}
        self._since_s = now_s
        self.task = self._tasks[0]
        self.end_s = math.inf
        self.host_khz = math.inf
        self.job = job
        self.run_id = run_id

    def update_progress(self, now_s: float) -> None:
        """Subtract the work done until time `now_s` from the remaining work of the current phase."""
        if now_s > self._since_s:
            done = math.fsum(self._rates.values()) * (now_s - self._since_s)
            self._remaining = max(0.0, self._remaining - done)
            self._since_s = now_s

    def set_rate(self, device_index: int, rate_per_s: float) -> None:
        """Set the rate at which a package or GPU executes this part of a compute kernel.

        Call `update_progress` first.

        Args:
            device_index: index of the package or GPU.
            rate_per_s: number of phases of the kernel that the package or GPU executes per second.
        """
        if self._rates.get(device_index) != rate_per_s:
            self._rates[device_index] = rate_per_s
        total = math.fsum(self._rates.values())
        self.end_s = self._since_s + self._remaining / total if total > 0 else math.inf

    def next_phase(self) -> bool:
        """Start the next phase (section) of the compute kernel. Return False if the kernel has ended."""
        if self.task.units:
            self._units += self.task.units
            self._unit_s = self._since_s
        self._index += 1
        if self._index == len(self._tasks):
            self._index = 0
            self._cycles_left -= 1
        self._remaining = 1.0
        self.task = self._tasks[self._index]
        self.end_s = math.inf
        return self._cycles_left > 0

    def units_at(self, now_s: float) -> float:
        """Return the progress units completed up to time `now_s`.

        The current phase must not end before `now_s`.
        """
        done = math.fsum(self._rates.values()) * (now_s - self._since_s)
        return self._units + self.task.units * (1.0 - max(0.0, self._remaining - done))

    def report_at(self, now_s: float) -> tuple[float, float]:
        """Return the last progress that a program can report at `now_s`: units of work and their time.

        A kernel part with several phases reports only whole steps; the time is the end of the last step. A
        kernel part with one phase reports its progress up to now.
        """
        if len(self._tasks) == 1:
            return self.units_at(now_s), now_s
        return self._units, self._unit_s

    @property
    def total_units(self) -> float:
        """Units of progress that this part of a compute kernel has still to complete.

        A kernel may repeat its phases in a number of cycles. The value is the units of one cycle multiplied
        by the number of cycles left, including the current one.
        """
        return math.fsum(task.units for task in self._tasks) * self._cycles_left

    @property
    def total_flops(self) -> float:
        """Number of operations that are left for this part of a compute kernel.

        A kernel may repeat its phases several times (cycles). The operations of the current cycle count in
        full, together with those of all later cycles.
        """
        return math.fsum(task.flops for task in self._tasks) * self._cycles_left

    @property
    def total_bytes(self) -> float:
        """Bytes that this part of a compute kernel still moves, in the current and all later cycles."""
        return math.fsum(task.bytes for task in self._tasks) * self._cycles_left


@dataclass(slots=True)
class KernelRun:
    """A compute kernel that runs on the node model.

    The kernel is split into parts. Each part runs on some cores or on one GPU.

    Attributes:
        run_id, kernel, device, size, start_s, flops, bytes: as in `KernelResult`.
        start_joules: the node's energy readings at the start of the kernel, by component.
        total_units: units of work that each part of the kernel must complete.
        units: the parts that still run. The value for each part is the core numbers or the GPU number on
            which the part runs.
    """

    run_id: int
    kernel: str
    device: str
    size: float
    start_s: float
    flops: float
    bytes: float
    start_joules: dict[str, float]
    total_units: float
    units: dict[KernelPart, tuple[int, ...]] = field(default_factory=dict)

    def progress_at(self, now_s: float) -> float:
        """Return the units of work that the slowest part of the kernel has completed up to `now_s`."""
        return min((part.units_at(now_s) for part in self.units), default=self.total_units)

    def report_at(self, now_s: float) -> tuple[float, float]:
        """Return the progress of an emulated kernel that can be reported at the time `now_s`.

        The progress is the number of completed units of work of the slowest part of the kernel. The second
        value is the time at which these units were completed.
        """
        return min((part.report_at(now_s) for part in self.units), default=(self.total_units, now_s))

    def finished(self, now_s: float, joules: dict[str, float]) -> KernelResult:
        """Return the result of a compute kernel's run that ends at time `now_s`.

        Args:
            now_s: time at which the run ends.
            joules: the node's energy readings at time `now_s`, by component.
        """
        return KernelResult(
            run_id=self.run_id,
            kernel=self.kernel,
            device=self.device,
            size=self.size,
            start_s=self.start_s,
            end_s=now_s,
            seconds=now_s - self.start_s,
            flops=self.flops,
            bytes=self.bytes,
            energy_joules={name: value - self.start_joules[name] for name, value in joules.items()},
            units=self.total_units,
        )
