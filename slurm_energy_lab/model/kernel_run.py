"""Progress of running kernels: phase and remaining work of each part, at the rate its device sets.

The module does not use power or frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slurm_energy_lab.model.job_integrals import Job
from slurm_energy_lab.model.kernels import Factors, KernelSpec
from slurm_energy_lab.model.requests import KernelResult


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """Operations and bytes of one phase of a part, in absolute numbers."""

    flops: float
    bytes: float
    overlap: float
    factors: Factors


class KernelPart:
    """The share of a kernel run that one GPU, or all its CPUs together, executes.

    Attributes:
        task: the current phase.
        end_s: end of the current phase at the current rates; infinity while all rates are 0.
        job: the job that the kernel belongs to.
    """

    __slots__ = (
        "_cycles_left",
        "_index",
        "_rates",
        "_remaining",
        "_since_s",
        "_tasks",
        "end_s",
        "job",
        "task",
    )

    def __init__(self, spec: KernelSpec, device: str, size: float, now_s: float, job: Job = None) -> None:
        scale = spec.scale(size)
        cycles = max(1, math.ceil(size)) if spec.looped else 1
        self._tasks = tuple(
            PhaseWork(
                phase.flops * scale / cycles,
                phase.bytes * scale / cycles,
                phase.overlap,
                phase.factors(device),
            )
            for phase in spec.phases
        )
        self._cycles_left = cycles
        self._index = 0
        self._remaining = 1.0
        self._rates: dict[int, float] = {}
        self._since_s = now_s
        self.task = self._tasks[0]
        self.end_s = math.inf
        self.job = job

    def update_progress(self, now_s: float) -> None:
        """Subtract the progress up to `now_s` from the remaining work of the phase."""
        if now_s > self._since_s:
            done = math.fsum(self._rates.values()) * (now_s - self._since_s)
            self._remaining = max(0.0, self._remaining - done)
            self._since_s = now_s

    def set_rate(self, device_index: int, rate_per_s: float) -> None:
        """Set the phases per second of a package or GPU. Call `update_progress` first."""
        if self._rates.get(device_index) != rate_per_s:
            self._rates[device_index] = rate_per_s
        total = math.fsum(self._rates.values())
        self.end_s = self._since_s + self._remaining / total if total > 0 else math.inf

    def next_phase(self) -> bool:
        """Go to the next phase; return False after the last one."""
        self._index += 1
        if self._index == len(self._tasks):
            self._index = 0
            self._cycles_left -= 1
        self._remaining = 1.0
        self.task = self._tasks[self._index]
        self.end_s = math.inf
        return self._cycles_left > 0

    @property
    def total_flops(self) -> float:
        """Remaining operations from the start of the current phase, over all cycles."""
        return math.fsum(task.flops for task in self._tasks) * self._cycles_left

    @property
    def total_bytes(self) -> float:
        """Remaining bytes from the start of the current phase, over all cycles."""
        return math.fsum(task.bytes for task in self._tasks) * self._cycles_left


@dataclass(slots=True)
class KernelRun:
    """A submitted kernel: the parts that still run, and the node's energy readings at its start."""

    run_id: int
    kernel: str
    device: str
    size: float
    start_s: float
    flops: float
    bytes: float
    start_joules: dict[str, float]
    units: dict[KernelPart, tuple[int, ...]] = field(default_factory=dict)

    def finished(self, now_s: float, joules: dict[str, float]) -> KernelResult:
        """Return the result of a run that ends now, given the node's energy readings."""
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
        )
